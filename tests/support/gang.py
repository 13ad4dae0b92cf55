"""Several ranks in one process, each on a thread: the protocol without the start-up of N Pythons."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from trainer.rendezvous.allreduce import ObjectStoreAllReduce
from trainer.rendezvous.base import Base
from trainer.rendezvous.manager import CheckpointPlace, ObjectStoreManager
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.progress import ProgressReporter
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.waiting import Standing, WaitBounds

T = TypeVar("T")

FAST = WaitBounds(timeout_s=60, startup_timeout_s=60, round_timeout_s=60, poll_interval_s=0.01)


def standing(store: ObjectStore, rank: int, run_id: str = "run") -> Standing:
    """A process that has just claimed `rank`."""
    log = RunLog(store, run_id)
    return Standing(log, rank, log.take_claim(rank), threading.Event())


def exchange(
    store: ObjectStore, rank: int, world_size: int, run_id: str = "run", **options: Any
) -> ObjectStoreAllReduce:
    """The all-reduce of a process that has just claimed `rank`; `options` as ObjectStoreAllReduce's."""
    return ObjectStoreAllReduce(standing(store, rank, run_id), world_size, FAST, **options)


def manager(
    store: ObjectStore, rank: int, world_size: int, checkpoints: Path | None = None, **options: Any
) -> ObjectStoreManager:
    """The manager of a process that has just claimed `rank`; its checkpoints below `checkpoints`."""
    reduce = exchange(store, rank, world_size, **options)
    place = None if checkpoints is None else CheckpointPlace(checkpoints / f"rank_{rank:04d}", "0" * 64)
    return ObjectStoreManager(reduce, ProgressReporter(reduce.log, rank, reduce.standing.claim), place)


def together(size: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(rank)` for all ranks at once; their results, or the first error in rank order."""
    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(work, rank) for rank in range(size)]]


def state(weights: torch.Tensor) -> dict[str, object]:
    """A fragment's shared state in torchft's form, its outer optimizer without momentum."""
    return {"original_parameters": {"w": weights}, "outer_optimizer": {"state": {}, "param_groups": []}}


def base(numel: int, weights: torch.Tensor | None = None, fragment: int = 0) -> Base:
    """What a contribution of `numel` values starts from: `weights`, or zeros."""
    return Base.of(fragment, state(torch.zeros(numel) if weights is None else weights))
