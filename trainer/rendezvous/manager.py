"""ObjectStoreManager: what torchft's DiLoCo takes for its Manager, over the run's log.

torchft asks eight things of a manager (`_use_async_quorum`, `register_state_dict_fn`,
`disallow_state_dict_read`, `allow_state_dict_read`, `start_quorum`, `current_step`,
`allreduce`, `should_commit`). Where torchft says quorum and step, this project says roster and
round; this is the one place that translates.

Two promises it keeps that torchft's own manager keeps too: the step advances when a round
commits, not when it starts (else fragments are skipped), and all ranks see the same step. One
that it keeps beyond: `should_commit` is never False. A round either commits for everybody, or
`Work.wait` raises, the process ends, and its relaunch catches up from the log (rule 7).
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import Work

from trainer.rendezvous.allreduce import Mean, ObjectStoreAllReduce
from trainer.rendezvous.base import Base, FragmentState
from trainer.rendezvous.initial import SharedState, Tensors, share_initial
from trainer.rendezvous.progress import ProgressReporter
from trainer.rendezvous.round_event import RoundEvent
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.state_hash import weights_hash
from trainer.rendezvous.wire import Floats

LoadFn = Callable[[Any], None]
SaveFn = Callable[[], FragmentState]


class ExchangeWork(Work):
    """A round in flight, as torch.distributed's Work: `wait` puts the mean into the caller's tensor."""

    def __init__(self, tensor: torch.Tensor, mean: "Future[Mean]") -> None:
        super().__init__()
        self._tensor = tensor
        self._mean = mean
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the round is decided. Raises the round's error; the tensor is then worthless."""
        mean = self._mean.result(None if timeout is None else timeout.total_seconds())
        if not self._future.done():
            found = torch.from_numpy(mean.values)
            if found.data_ptr() != self._tensor.data_ptr():  # on the CPU the exchange works in place
                self._tensor.copy_(found.view_as(self._tensor))
            self._future.set_result([self._tensor])  # runs torchft's unpacking of the bucket, here
        return True

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        return self._future

    @property
    def event(self) -> RoundEvent:
        return self._mean.result().event


@dataclass(frozen=True)
class CheckpointPlace:
    """Where this process keeps checkpoints, and a digest of the run parameters that they belong to."""

    folder: Path
    parameters_sha256: str


class ObjectStoreManager:
    """The manager that a trainer function is given. One per process; not for several threads.

    A trainer may use torchft's DiLoCo with it directly, with exactly one bucket a fragment, or
    `trainer.diloco.make_diloco_outer_loop`, which also shares the initial weights and catches up.
    """

    _use_async_quorum = False  # torchft reads this private name and refuses True

    def __init__(
        self,
        exchange: ObjectStoreAllReduce,
        reporter: ProgressReporter,
        checkpoint_place: CheckpointPlace | None = None,
        resume_from: str = "",
    ) -> None:
        self.resume_from = resume_from
        self.checkpoint_place = checkpoint_place
        self._before_contributing: Callable[[], None] = lambda: None
        self._exchange = exchange
        self._reporter = reporter
        self._round = 0
        self._inner_step = 0
        self._save_fns: dict[str, SaveFn] = {}
        self._load_fns: dict[str, LoadFn] = {}
        self._work: ExchangeWork | None = None
        self._round_began_s = self._sent_s = exchange.clock.now()
        self.last_round: RoundEvent | None = None

    # torchft's side

    def register_state_dict_fn(self, key: str, load_fn: LoadFn, save_fn: SaveFn) -> None:
        self._load_fns[key] = load_fn
        self._save_fns[key] = save_fn

    def disallow_state_dict_read(self) -> None:
        """Called before each inner step."""

    def allow_state_dict_read(self) -> None:
        """Called after each inner step: the sign of life that peers wait by."""
        self._inner_step += 1
        self._reporter.update(inner_step=self._inner_step, state="training")

    def start_quorum(self) -> None:
        """Called when a round starts. Nothing to ask yet: the exchange itself waits for the roster."""
        if self._reporter.failure is not None:
            raise self._reporter.failure

    def current_step(self) -> int:
        """The round that is next to commit; torchft takes it modulo the fragments."""
        return self._round

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> ExchangeWork:
        """Start this round's exchange of one fragment's flat pseudo-gradient; returns at once."""
        if should_quantize:
            raise ValueError("should_quantize: torchft's quantisation is for NCCL; leave it off")
        if self._work is not None:
            raise RuntimeError(
                f"round {self._round}: a second all-reduce. Give DiLoCo one bucket a fragment: "
                "use_bucketization=True and a bucket_cap_mb above the fragment's size"
            )
        fragment = self._round % len(self._save_fns)  # DiLoCo registers its fragments when it is made
        save = self._save_fns[f"StreamingDiLoCoFragment_{fragment}"]

        def state() -> FragmentState:  # asked for on the exchange's thread, before anything is sent
            self._before_contributing()
            return save()

        self._sent_s = self._exchange.clock.now()
        self._work = ExchangeWork(tensor, self._exchange.start(self._round, fragment, tensor, state))
        return self._work

    def should_commit(self) -> bool:
        """Advance to the next round. Always True: a round that failed has raised in `wait`."""
        if self._work is None:
            raise RuntimeError(f"round {self._round}: nothing was exchanged, so nothing can commit")
        event, self._work = self._work.event, None
        log, now_s = self._exchange.log, self._exchange.clock.now()
        event.computed_s, event.applied_s = self._sent_s - self._round_began_s, now_s - self._sent_s
        self._round_began_s = now_s
        self.last_round = event
        key = log.keys.event(event.round, event.rank)
        self._reporter.later(lambda: log.store.create(key, event.encode()))
        self._round += 1
        self._reporter.update(round=self._round)
        return True

    # The trainer's side

    @property
    def log(self) -> RunLog:
        return self._exchange.log

    @property
    def rank(self) -> int:
        return self._exchange.standing.rank

    @property
    def claim(self) -> int:
        return self._exchange.standing.claim

    def before_contributing(self, wait: Callable[[], None]) -> None:
        """Have `wait` called in each round before this rank contributes, off the training thread."""
        self._before_contributing = wait

    @property
    def unsent(self) -> dict[int, Floats]:
        """By fragment, what quantising has kept back so far; read it only while no exchange is in flight."""
        return self._exchange.unsent

    def fragment_states(self) -> dict[str, FragmentState]:
        """The shared state of every fragment, by the key under which torchft registered it."""
        return {key: save() for key, save in self._save_fns.items()}

    def restore(
        self, round_index: int, states: Mapping[str, FragmentState], unsent: dict[int, Floats]
    ) -> None:
        """Go on as a process did that was about to begin `round_index`; call it once DiLoCo is made.

        Takes the names for granted: torchft passes over those it doesn't know.
        """
        for key, load in self._load_fns.items():
            load(states[key])
        self._exchange.unsent.clear()
        self._exchange.unsent.update(unsent)
        self._round = round_index
        self._reporter.update(round=round_index)

    def rounds_behind(self, most: int) -> int:
        """Committed rounds that this process hasn't applied, counted up to `most`."""
        behind = 0
        while behind < most and self.log.roster(self._round + behind) is not None:
            behind += 1
        return behind

    def share_initial(self, named: Tensors, earlier: Callable[[], SharedState] | None = None) -> SharedState:
        """Make `named`, or what `earlier` gives, the run's initial state, or load the one that stands."""
        return share_initial(self._exchange.standing, named, earlier)

    def catch_up(self, apply: Callable[[int, torch.Tensor], None]) -> int:
        """Apply every committed mean in order and advance past it; return the rounds done.

        `apply(fragment, mean)` takes one fragment's outer step with its flat float32 mean. The log's
        fold is the shared state (rule 8). Raises as the exchange does: a mean that is missing or
        foreign is never skipped.
        """
        while (roster := self.log.roster(self._round)) is not None:
            self._exchange.standing.check(self._round)
            fragment = self._round % len(self._save_fns)
            base = Base.of(fragment, self._save_fns[f"StreamingDiLoCoFragment_{fragment}"]())
            mean = np.empty(base.numel, np.float32)
            self._exchange.committed_mean(roster, mean, base)
            apply(fragment, torch.from_numpy(mean))
            self.unsent.pop(fragment, None)  # whatever was kept back then, a later life has sent or lost it
            self._round += 1
            self._reporter.update(round=self._round, state="catching up")
        return self._round

    def resume_at(self, inner_step: int) -> None:
        """Say at which inner step the trainer goes on."""
        self._inner_step = inner_step
        self._round_began_s = self._exchange.clock.now()
        self._reporter.update(inner_step=inner_step)

    def report(self, **fields: Any) -> None:
        """Add to this rank's progress object, e.g. loss or tokens_per_s."""
        self._reporter.update(**fields)

    def later(self, write: Callable[[], object]) -> None:
        """Have something written to the store soon, off the training thread, in order."""
        self._reporter.later(write)

    def check_stop(self) -> None:
        """Raise Stopped where this process was asked to stop; call it between inner steps."""
        self._exchange.standing.check_stop()

    @property
    def has_fragments(self) -> bool:
        """Whether a model was wired to this manager."""
        return bool(self._save_fns)

    def weights_hash(self) -> str:
        """Hash of the shared weights, over all fragments; equal on all ranks after the same round."""
        states = (save() for save in self._save_fns.values())
        return weights_hash([item for state in states for item in state["original_parameters"].items()])
