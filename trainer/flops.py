"""How much arithmetic training takes, and what an accelerator could do at most: the two halves of MFU.

Model FLOPs utilisation as in PaLM's appendix B (arXiv:2204.02311): what the model needs for its
tokens, recomputation not counted, over the peak.
"""

import re
from typing import Any, Final

import torch
from torch import nn

# Dense bf16 FLOP/s by the name that torch gives a GPU: NVIDIA's data sheets of the products, halved
# where they state the rate with sparsity. Those without bf16 (V100, T4) have no entry, so no MFU.
PEAK_FLOPS: Final = {
    "A10G": 70e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}
# The same names on slower boards: a peak that is too high would be worse than none.
_OTHER_BOARDS: Final = re.compile(r"\b(PCIe|NVL|MIG)\b")


def peak_flops(device: torch.device) -> float | None:
    """The device's peak, or None where it isn't known."""
    return None if device.type != "cuda" else peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """The peak of a GPU by its name, e.g. "NVIDIA A100-SXM4-40GB"."""
    other = _OTHER_BOARDS.search(name)
    if other and (other[0] == "MIG" or "A100" not in name):  # an A100 computes as fast on either board
        return None
    return next((peak for known, peak in PEAK_FLOPS.items() if re.search(rf"\b{known}\b", name)), None)


def flops_per_token(model: nn.Module, seq_len: int) -> float:
    """FLOPs of one token, forward and backward.

    2 for each parameter it passes through going forward, 2 for the gradient of its input, 2 more
    for the gradient of the parameter itself, unless that is frozen; and 12 x layers x width x
    seq_len for attention, its causal half not deducted, as usual. Embedding tables are looked up and
    cost nothing, unless they are the output head, too. Of experts, those that a token is sent to.
    """
    config: Any = getattr(model, "config", None)
    tables = {
        p
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        for p in module.parameters()
    }
    find_head = getattr(model, "get_output_embeddings", None)  # transformers' name for it
    head = find_head() if callable(find_head) else None
    used = set(head.parameters()) if isinstance(head, nn.Module) else set()
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts")
    share = _first(config, "num_experts_per_tok") / experts if experts else 1.0
    total = 0.0
    for name, parameter in model.named_parameters():
        if parameter in tables - used:
            continue
        active = parameter.numel() * (share if ".experts." in name else 1.0)
        total += active * (6 if parameter.requires_grad else 4)
    layers, width = _first(config, "num_hidden_layers", "n_layer"), _first(config, "hidden_size", "n_embd")
    return total + 12.0 * layers * width * seq_len


def _first(config: Any, *names: str) -> float:
    found = (getattr(config, name, None) for name in names)
    return float(next((value for value in found if isinstance(value, int)), 0))
