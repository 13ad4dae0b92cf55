"""torchft's DiLoCo over the run bucket: vanilla (arXiv:2311.08105) and Streaming (arXiv:2501.18512).

torchft does the stepping; this file gives it what it needs to be right: fragments that cover
the model once, one outer optimizer and one bucket for each, the same initial weights
everywhere, and a start at the head of the log for a process that comes late. The traps that
shape this file are torchft 0.2.0's, and each has a test in tests/trainer/test_torchft_traps.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import nn
from torchft.local_sgd import DiLoCo

from trainer.fragments import Fragment, split_fragments, to_share
from trainer.outer_optimizer import OuterNesterov
from trainer.rendezvous.manager import ObjectStoreManager


class DiLoCoLoop:
    """A context in which every `inner_optimizer.step()` counts, and rounds happen by themselves.

    On leaving, the model still holds this replica's local weights; `load_shared` turns them into
    the shared ones, which are what is evaluated and saved.
    """

    def __init__(self, diloco: DiLoCo, manager: ObjectStoreManager, fragments: list[Fragment]) -> None:
        self._diloco = diloco
        self._manager = manager
        self._fragments = fragments

    def __enter__(self) -> Self:
        self._diloco.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._diloco.__exit__(kind, error, traceback)

    @property
    def rounds(self) -> int:
        """Rounds committed so far; above zero at the start for a process that caught up."""
        return self._manager.current_step()

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """The model with the shared weights, for an evaluation; the local ones come back after."""
        parameters = [p for fragment in self._fragments for _, p in fragment.named_parameters()]
        local = [p.detach().clone() for p in parameters]
        self.load_shared()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(parameters, local, strict=True):
                    parameter.copy_(value)

    def load_shared(self) -> None:
        """Put the shared weights into the model."""
        self._diloco._restore_parameters()


def make_diloco_outer_loop(
    *,
    manager: ObjectStoreManager,
    model: nn.Module,
    inner_optimizer: torch.optim.Optimizer,
    sync_every: int,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    fragments: int = 1,
    fragment_sync_delay: int = 0,
    fragment_update_alpha: float = 0.0,
) -> DiLoCoLoop:
    """Wire a model and its inner optimizer to the run's log.

    Shares the initial weights, so `model` may change here; catches up to the head of the log, so
    training goes on at `loop.rounds`. Parameters must be float32 (use autocast for speed): in
    bfloat16 an outer step of 1e-4 is lost to rounding.

    Raises ValueError for a combination that can't be scheduled, and what the store raises.
    """
    if sync_every < 1 or fragments < 1 or sync_every % fragments:
        raise ValueError(f"sync_every {sync_every} must be a positive multiple of fragments {fragments}")
    if not 0 <= fragment_sync_delay < sync_every // fragments:
        raise ValueError(
            f"fragment_sync_delay {fragment_sync_delay} must be from 0 to below {sync_every // fragments}, "
            "the inner steps between two rounds"
        )
    parts = split_fragments(model, fragments)
    low = sorted(name for part in parts for name, p in part.named_parameters() if p.dtype != torch.float32)
    if low:
        raise ValueError(f"{len(low)} parameters are not float32, first {low[0]}: load the model in float32")
    manager.share_initial(to_share(model))
    outer = [
        OuterNesterov((p for _, p in part.named_parameters()), lr=outer_lr, momentum=outer_momentum)
        for part in parts
    ]
    bucket_mb = max(part.numel() for part in parts) * 4 // 2**20 + 1
    diloco = DiLoCo(
        manager,  # torchft's Manager by duck type; see rendezvous/manager.py
        list(parts),
        inner_optimizer,
        list(outer),
        sync_every,
        # Exactly one bucket a fragment: torchft loses tensors where several don't pack exactly, and
        # by default it makes an object of every tensor.
        use_bucketization=True,
        bucket_cap_mb=bucket_mb,
        fragment_sync_delay=fragment_sync_delay,
        fragment_update_alpha=fragment_update_alpha,
    )

    def outer_step(index: int, mean: torch.Tensor) -> None:
        _set_gradients(parts[index], mean)
        outer[index].step()
        outer[index].zero_grad()
        diloco._fragments[index].save_parameters()

    manager.catch_up(outer_step)
    manager.resume_at(manager.current_step() * (sync_every // fragments))
    return DiLoCoLoop(diloco, manager, parts)


def _set_gradients(fragment: Fragment, flat: torch.Tensor) -> None:
    """Unpack a flat mean the way torchft packs a bucket: parameter by parameter, in order."""
    offset = 0
    for _, parameter in fragment.named_parameters():
        piece = flat[offset : offset + parameter.numel()]
        parameter.grad = piece.view_as(parameter).to(parameter.device)
        offset += parameter.numel()
