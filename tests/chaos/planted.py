"""Bugs planted on purpose: a harness that calls a run with one of them good is worth nothing.

Each breaks a rule of docs/architecture.md inside the replica processes of one schedule.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from tests.chaos import keys
from tests.chaos.schedule import KILL_AFTER, STOP, Schedule, Setting, Trigger
from trainer import checkpoint
from trainer.rendezvous.averaging import Averaging, Fetcher
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.wire import Floats


def written_over() -> None:
    """Rule 2: what stands in the log is overwritten by whoever comes later."""

    def create(self: ObjectStore, key: str, data: bytes) -> bytes:
        self.put(key, data)
        return data

    ObjectStore.create = create  # type: ignore[method-assign]


def summed_as_they_come() -> None:
    """Rule 5: a mean is summed in another order on each rank, its own values first."""
    mean_chunks = Averaging.mean_chunks

    def own_first(self: Averaging, fetcher: Fetcher, chunks: Sequence[int], held: Floats) -> Iterator[Floats]:
        first = [member for member in self.members if member is self.own]
        others = [member for member in self.members if member is not self.own]
        changed = Averaging(first + others, self.geometry, self.wire, self.mean_wire, self.own)
        return mean_chunks(changed, fetcher, chunks, held)

    Averaging.mean_chunks = own_first  # type: ignore[method-assign]


def mean_skipped() -> None:
    """Rule 8: a process that catches up leaves the newest mean out."""
    catch_up = ObjectStoreManager.catch_up

    def all_but_the_last(
        self: ObjectStoreManager, apply: Callable[[int, torch.Tensor], None], **given: Any
    ) -> int:
        head = self._round
        while self.log.roster(head) is not None:
            head += 1

        def skipping(fragment: int, mean: torch.Tensor) -> None:
            last = self.current_step() == head - 1
            apply(fragment, torch.from_numpy(np.zeros_like(mean.numpy())) if last else mean)

        return catch_up(self, skipping, **given)

    ObjectStoreManager.catch_up = all_but_the_last  # type: ignore[method-assign]


def unchecked_checkpoint() -> None:
    """A checkpoint counts as whole whatever its bytes are."""
    checkpoint._described = lambda path: {"bytes": 0, "crc64nvme": ""} if path.exists() else None


BUGS: Final[dict[str, Callable[[], None]]] = {
    "the log is written over": written_over,
    "a mean is summed in order of arrival": summed_as_they_come,
    "catching up skips a mean": mean_skipped,
    "a checkpoint's checksums are not checked": unchecked_checkpoint,
}


def planted_schedules() -> list[Schedule]:
    """For each bug a schedule that must fail with it; without it, its like is among all the others."""
    kill = Trigger("PUT", keys.contribution(2, 1), KILL_AFTER)
    # Rank 2 is held until rank 1 has come back: the round is still open when it contributes again.
    hold = Trigger("PUT", keys.payload(2, 2), STOP, pause_s=0.3, until=keys.later_payload(2, 1, 1))
    # Its checkpoints are gone, and with them AdamW's state: what it computes again differs, and those who
    # have read its first word would average other values than those who read the second.
    return [
        Schedule(
            "planted bug",
            "-",
            Setting(3),
            1,
            (kill, hold),
            damage="all gone",
            bug="the log is written over",
        ),
        Schedule("planted bug", "-", Setting(3), bug="a mean is summed in order of arrival"),
        Schedule(
            "planted bug",
            "-",
            Setting(2, inner="sgd"),
            1,
            (kill,),
            damage="all gone",
            bug="catching up skips a mean",
        ),
        Schedule(
            "planted bug",
            "-",
            Setting(2),
            1,
            (kill,),
            damage="bits flipped in its tensors",
            bug="a checkpoint's checksums are not checked",
        ),
    ]
