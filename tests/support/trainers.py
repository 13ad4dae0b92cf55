"""Trainer functions of somebody else's, as run parameters may name them."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.toy import Toy, adamw, loss
from trainer.diloco import make_diloco_outer_loop
from trainer.rendezvous.errors import NonFinite
from trainer.rendezvous.manager import ObjectStoreManager

not_a_function = 3


def toy(
    *,
    manager: ObjectStoreManager,
    rank: int,
    world_size: int,
    model_dir: Path,
    before: Callable[[int], None] = lambda _: None,
    **run: Any,
) -> dict[str, Any]:
    """Trains the toy through the public contract and nothing else; calls `before(step)`.

    Without a seed of the run's each rank draws weights of its own, and whose are shared is chance.
    """
    model = Toy(seed=run["seed"] or rank)
    optimizer = adamw(model)
    with make_diloco_outer_loop(
        manager=manager,
        model=model,
        inner_optimizer=optimizer,
        sync_every=run["sync_every"],
        outer_lr=run["outer_lr"],
        outer_momentum=run["outer_momentum"],
    ) as loop:
        for step in range(loop.rounds * run["sync_every"], run["total_steps"]):
            manager.check_stop()
            before(step)
            optimizer.zero_grad()
            loss(model, rank, step).backward()
            optimizer.step()
    (model_dir / "weights.txt").write_text(f"world size {world_size}")
    return {"last_loss": 1.25, "seen": sorted(run)}


def broken(**_: Any) -> None:
    raise RuntimeError("out of\nluck")


def poisoned(*, rank: int, **_: Any) -> None:
    raise NonFinite(f"rank {rank} round 0 inner step 3: the loss is nan")


def flipped(*, manager: ObjectStoreManager, rank: int, model_dir: Path, **run: Any) -> None:
    """As `toy`, but after the last round one shared weight of rank 1 loses a bit."""
    toy(manager=manager, rank=rank, model_dir=model_dir, **run)
    if rank == 1:
        saved = manager._save_fns["StreamingDiLoCoFragment_0"]

        def flip() -> Any:
            state = saved()
            first = next(iter(state["original_parameters"].values()))
            first.view(torch.int32).view(-1)[0] ^= 1
            return state

        manager._save_fns["StreamingDiLoCoFragment_0"] = flip


def slow_rank_3(*, manager: ObjectStoreManager, rank: int, **run: Any) -> Any:
    """As `toy`, but rank 3 never gets as far as contributing; it stops when asked to."""
    if rank == 3:
        while True:
            manager.check_stop()
    return toy(manager=manager, rank=rank, **run)


def held(*, manager: ObjectStoreManager, rank: int, **run: Any) -> Any:
    """As `toy`, but no rank begins the second round before somebody puts `go` into the run's output."""
    go = f"{manager.log.keys.output_prefix}/go"

    def hold(step: int) -> None:
        while step == run["sync_every"] and manager.log.store.find(go) is None:
            manager.check_stop()
            time.sleep(0.05)

    return toy(manager=manager, rank=rank, before=hold, **run)


def stopped_once(*, manager: ObjectStoreManager, **run: Any) -> Any:
    """As `toy`, but the run's first process is sent SIGTERM in the middle of its second round."""

    def stop(step: int) -> None:
        if step == run["sync_every"] + 1 and manager.claim == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    return toy(manager=manager, before=stop, **run)


def broken_rank_1(*, manager: ObjectStoreManager, rank: int, **_: Any) -> None:
    """Rank 1 fails; the others train on until they are asked to stop."""
    if rank == 1:
        broken()
    while True:
        manager.check_stop()
        time.sleep(0.05)
