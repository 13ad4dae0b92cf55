"""Steps without a finite loss or gradient: skipped by a replica alone, counted, bounded."""

import json
import math
from pathlib import Path

import pytest
import torch

from tests.support.gang import manager
from trainer import train
from trainer.inner_loop import InnerLoop
from trainer.rendezvous.errors import NonFinite
from trainer.rendezvous.object_store import ObjectStore
from trainer.step_guard import StepGuard


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inner steps, counted over the process, whose loss becomes NaN; fill it before training."""
    steps: set[int] = set()
    original, taken = InnerLoop._loss, iter(range(10**6))

    def loss(self: InnerLoop, tokens: torch.Tensor) -> torch.Tensor:
        value = original(self, tokens)
        return value * math.nan if self.model.training and next(taken) in steps else value

    monkeypatch.setattr(InnerLoop, "_loss", loss)
    return steps


def run(store: ObjectStore, folder: Path, **parameters: object) -> list[dict[str, float]]:
    made = manager(store, 0, 1)
    train.diloco_train(
        manager=made, rank=0, world_size=1, model_dir=folder / "model",
        **{"total_steps": 6, "sync_every": 2, "lr": 0.01, **parameters},
    )  # fmt: skip
    made._reporter.close("finished")
    lines = store.get("diloco-out/run/metrics/rank_0000.jsonl").splitlines()
    return [json.loads(line) for line in lines]


def test_a_skipped_step_counts_for_the_round_and_leaves_no_trace_in_it(
    store: ObjectStore, tmp_path: Path, poison: set[int]
) -> None:
    poison |= {2, 4, 5}
    rounds = run(store, tmp_path)
    assert [row["skipped_steps"] for row in rounds] == [0, 1, 3]
    assert ["train_loss" in row for row in rounds] == [True, True, False]  # of the last nothing was taken
    assert ["grad_norm" in row for row in rounds] == [True, True, False]
    assert rounds[2]["pseudo_gradient_norm"] == 0.0
    assert rounds[1]["pseudo_gradient_norm"] > 0.0
    assert all(math.isfinite(value) for row in rounds for value in row.values())


def test_one_step_above_the_bound_ends_the_run_and_says_where(
    store: ObjectStore, tmp_path: Path, poison: set[int]
) -> None:
    poison |= {1, 2, 3}
    with pytest.raises(
        NonFinite, match="rank 0 round 1 inner step 3: the loss is nan, and 2 steps were skipped"
    ):
        run(store, tmp_path, max_skipped_steps=2)
    assert not store.keys("diloco-data/run/round_000001")


def test_a_gradient_norm_that_is_infinite_is_as_bad_as_such_a_loss() -> None:
    guard = StepGuard(rank=3, max_skipped=1)
    assert guard.accepts(1.0, 2.0, round_index=0, step=0)
    assert not guard.accepts(1.0, math.inf, round_index=0, step=1)
    with pytest.raises(NonFinite, match="rank 3 round 4 inner step 9: the gradient norm is inf, and 1 steps"):
        guard.accepts(1.0, math.inf, round_index=4, step=9)


def test_the_count_goes_on_in_the_next_life() -> None:
    guard = StepGuard(rank=0, max_skipped=2)
    guard.accepts(math.nan, 1.0, round_index=0, step=0)
    later = StepGuard(rank=0, max_skipped=2)
    later.load_state_dict(guard.state_dict())
    assert later.skipped == 1
