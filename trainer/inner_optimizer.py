"""The inner optimizer: AdamW, or Muon for the hidden matrices with AdamW for the rest; its learning rate.

Either way the trainer and torchft see one torch Optimizer: one `step` to hook, one `state_dict`.
Muon as inner optimizer of DiLoCo is MuLoCo (arXiv:2505.23725); the implementation is torch's.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from trainer.run_spec import RunSpec

BETAS: Final = (0.9, 0.95)  # as usual for language models
FINAL_LR_SHARE: Final = 0.1  # the cosine ends at a tenth of the peak, as usual for language models
# One pass over memory instead of a dozen. Inner steps may differ between processors, so it may be used.
FUSED_ON: Final = ("cuda", "cpu")


def make_inner_optimizer(model: nn.Module, spec: RunSpec) -> torch.optim.Optimizer:
    """The optimizer of every parameter of `model` that trains, as spec.inner_optimizer says.

    Weight decay is for matrices: vectors (norms, biases) have none, since pulling a scale or an
    offset towards zero regularises nothing.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if spec.inner_optimizer == "adamw":
        return _adamw(list(trained.values()), spec)
    hidden = hidden_matrices(model)
    for_muon = [p for name, p in trained.items() if name in hidden]
    others = [p for name, p in trained.items() if name not in hidden]
    if not for_muon:
        return _adamw(others, spec)
    muon = torch.optim.Muon(
        for_muon, lr=spec.lr, weight_decay=spec.weight_decay,
        # Scales updates to the size of AdamW's, so that both take the same learning rate and decay.
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    return MuonWithAdamW(muon, _adamw(others, spec)) if others else muon  # LoRA trains nothing but matrices


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the two-dimensional parameters that are neither embedding nor output head.

    Muon orthogonalises the update of a map between hidden states. A row of an embedding or a head
    belongs to one token, and experts stacked into three dimensions are not what torch's Muon takes:
    those stay with AdamW.
    """
    ends = {p for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    find_head = getattr(model, "get_output_embeddings", None)  # transformers' name for it
    head = find_head() if callable(find_head) else None
    if isinstance(head, nn.Module):
        ends |= set(head.parameters())
    return {name for name, p in model.named_parameters() if p.ndim == 2 and p not in ends}


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers over disjoint parameters as one: groups and state are this object's own."""

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW) -> None:
        self._parts = (muon, adamw)
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both. `closure` is torch's signature and unused."""
        start = 0
        for part in self._parts:
            end = start + len(part.param_groups)
            # Handed over each time: load_state_dict replaces the groups and the state of this object.
            part.param_groups, part.state = self.param_groups[start:end], self.state
            part.step()
            start = end


def learning_rate(spec: RunSpec, step: int) -> float:
    """The inner learning rate of inner step `step`, from 0: linear warm-up, then spec.lr_schedule."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    if spec.lr_schedule == "constant":
        return spec.lr
    done = (step - spec.warmup_steps) / max(spec.total_steps - spec.warmup_steps, 1)
    share = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return spec.lr * share


def _adamw(parameters: list[nn.Parameter], spec: RunSpec) -> torch.optim.AdamW:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in FUSED_ON for p in parameters)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=spec.lr, betas=BETAS, fused=fused or None)
