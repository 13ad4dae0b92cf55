"""torchft's DiLoCo over the run bucket: vanilla (arXiv:2311.08105) and Streaming (arXiv:2501.18512).

torchft does the stepping; this file gives it what it needs to be right: fragments that cover
the model once, one outer optimizer and one bucket for each, the same initial weights
everywhere, and for a process that comes late a start from its checkpoint or at the head of the
log (rule 8). The traps that
shape this file are torchft 0.2.0's, and each has a test in tests/trainer/test_torchft_traps.py.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import torch
from torch import nn
from torchft.local_sgd import DiLoCo

from trainer.checkpoint import Checkpoints, Owner
from trainer.earlier_run import last_state, put_momentum
from trainer.failures import CheckpointNotWritten, ForeignCheckpoint
from trainer.fragments import Fragment, split_fragments, to_share
from trainer.outer_optimizer import OuterNesterov
from trainer.rendezvous.initial import SharedState
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.run_log import RunLog
from trainer.resuming import LoopState, Stateful

# How long a process that must leave waits for a checkpoint under way: it has 60 s, SIGKILL comes after 120.
LAST_WRITE_S: Final = 30.0

log = logging.getLogger(__name__)


class DiLoCoLoop:
    """A context in which every `inner_optimizer.step()` counts, and rounds happen by themselves.

    On leaving, the model still holds this replica's local weights; `load_shared` turns them into
    the shared ones, which are what is evaluated and saved.
    """

    def __init__(
        self,
        state: LoopState,
        fragments: list[Fragment],
        checkpoints: Checkpoints | None,
        *,
        steps_per_round: int,
        replayed: bool,
    ) -> None:
        self._state = state
        self._diloco = state.diloco
        self._manager = state.manager
        self._fragments = fragments
        self._checkpoints = checkpoints
        self._steps_per_round = steps_per_round
        self._kept_round = state.manager.current_step()
        self._hook: torch.utils.hooks.RemovableHandle | None = None
        self.replayed = replayed

    def __enter__(self) -> Self:
        self._diloco.__enter__()
        # Hooks run in the order of their registration: this one after torchft's, so after the outer step.
        self._hook = self._state.inner_optimizer.register_step_post_hook(lambda *_: self._keep())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._diloco.__exit__(kind, error, traceback)
        if self._checkpoints is None:
            return
        if error is None:
            self._checkpoints.finish()
            return
        try:
            self._checkpoints.finish(LAST_WRITE_S)
        except CheckpointNotWritten as second:  # the reason to leave is the error at hand
            if second is not error:
                error.add_note(f"and: {second}")

    def _keep(self) -> None:
        """Once a round: a checkpoint of the state between two inner steps, with no exchange in flight."""
        if self._checkpoints is not None and self.rounds > self._kept_round:
            self._checkpoints.write(self.rounds, self._state.capture())
            self._kept_round = self.rounds

    @property
    def rounds(self) -> int:
        """Rounds applied so far; above zero at the start for a process that was resumed or caught up."""
        return self._manager.current_step()

    @property
    def first_inner_step(self) -> int:
        """The inner step that the round at hand begins with; where training goes on when the loop is made.

        Set learning rate and data by it. Where `replayed` is True the stateful objects are older than it.
        """
        return self.rounds * self._steps_per_round

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
    stateful: Mapping[str, Stateful] | None = None,
) -> DiLoCoLoop:
    """Wire a model and its inner optimizer to the run's log.

    Shares the initial weights or loads this rank's checkpoint, so `model` and what is in `stateful` may
    change here; training goes on at `loop.rounds`, that is at `loop.first_inner_step`. Whatever else
    decides what an inner step does (data position, loss scaler) belongs into `stateful`; model,
    optimizers and random states are kept anyway. Where `loop.replayed`, set the data to that step.
    Parameters must be float32 (use autocast for speed): in bfloat16 an outer step of 1e-4 is lost to
    rounding.

    Raises ValueError for a combination that can't be scheduled, ForeignCheckpoint, and what the store
    raises.
    """
    _check_schedule(sync_every, fragments, fragment_sync_delay)
    parts = split_fragments(model, fragments)
    _require_float32(parts)
    checkpoints = _checkpoints(manager)
    saved = None if checkpoints is None else checkpoints.newest()
    momentum = {} if saved else _beginning(manager, model).momentum
    outer = [
        OuterNesterov((p for _, p in part.named_parameters()), lr=outer_lr, momentum=outer_momentum)
        for part in parts
    ]
    put_momentum(parts, outer, momentum)
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

    state = LoopState(manager, model, diloco, inner_optimizer, stateful or {})
    if saved is not None:
        state.restore(saved)
        if manager.current_step() and manager.log.roster(manager.current_step() - 1) is None:
            raise ForeignCheckpoint(
                f"{saved.folder} is of round {saved.round}, which the run's log hasn't come to: was the log "
                "deleted? Start a new run."
            )
    replayed = _replay(manager, diloco, parts, outer)
    steps_per_round = sync_every // fragments
    manager.resume_at(manager.current_step() * steps_per_round)
    log.info(
        "event=resumed run=%s rank=%d round=%d checkpoint=%s replayed=%s",
        manager.log.run_id, manager.rank, manager.current_step(), saved and saved.folder.name, replayed,
    )  # fmt: skip
    if checkpoints is not None:
        manager.before_contributing(checkpoints.finish)
    return DiLoCoLoop(state, parts, checkpoints, steps_per_round=steps_per_round, replayed=replayed)


def _beginning(manager: ObjectStoreManager, model: nn.Module) -> SharedState:
    """Put the run's initial weights into `model`: those that stand, an earlier run's, or its own."""
    named = to_share(model)
    if not manager.resume_from:
        return manager.share_initial(named)
    earlier = RunLog(manager.log.store, manager.resume_from)
    state = manager.share_initial(named, lambda: last_state(earlier, model))
    log.info("event=resumed_from run=%s rank=%d source=%s", manager.log.run_id, manager.rank, state.source)
    return state


def _checkpoints(manager: ObjectStoreManager) -> Checkpoints | None:
    place = manager.checkpoint_place
    if place is None:
        return None
    owner = Owner(manager.log.run_id, manager.rank, place.parameters_sha256)
    return Checkpoints(place.folder, owner, manager.claim)


def _replay(
    manager: ObjectStoreManager, diloco: DiLoCo, parts: list[Fragment], outer: list[OuterNesterov]
) -> bool:
    """Fold the log up to its head, where this process is more than a round behind it; whether it did.

    One round behind, the inner steps are taken again instead, and end where they did before: this rank
    had contributed and died before its next checkpoint. After a fold the local weights are the shared.
    """
    if manager.rounds_behind(2) < 2:
        return False

    def outer_step(index: int, mean: torch.Tensor) -> None:
        parts[index].set_gradients(mean)
        outer[index].step()
        outer[index].zero_grad()
        diloco._fragments[index].save_parameters()

    diloco._restore_parameters()  # an outer step starts from the shared weights
    manager.catch_up(outer_step)
    return True


def _check_schedule(sync_every: int, fragments: int, fragment_sync_delay: int) -> None:
    if sync_every < 1 or fragments < 1 or sync_every % fragments:
        raise ValueError(f"sync_every {sync_every} must be a positive multiple of fragments {fragments}")
    if not 0 <= fragment_sync_delay < sync_every // fragments:
        raise ValueError(
            f"fragment_sync_delay {fragment_sync_delay} must be from 0 to below {sync_every // fragments}, "
            "the inner steps between two rounds"
        )


def _require_float32(parts: list[Fragment]) -> None:
    low = sorted(name for part in parts for name, p in part.named_parameters() if p.dtype != torch.float32)
    if low:
        raise ValueError(f"{len(low)} parameters are not float32, first {low[0]}: load the model in float32")
