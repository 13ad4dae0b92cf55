"""Evaluation in shares: the loss of the whole, on every rank, whoever evaluates what."""

import json
from dataclasses import replace

import pytest
import torch

from tests.support.clock import FakeTime
from tests.support.gang import manager, together
from trainer.evaluation import SLOWEST_POLL_S, TAKE_OVER_S, Evaluation
from trainer.layout import RunLayout
from trainer.rendezvous.object_store import ObjectStore

ROWS = torch.arange(37.0).square().view(37, 1)  # as if each row were its own loss
MEAN = ROWS.mean().item()


def evaluation(store: ObjectStore, rank: int, world_size: int) -> Evaluation:
    return Evaluation(manager(store, rank, world_size), rank, world_size, ROWS, lambda rows: rows.mean())


@pytest.mark.parametrize("world_size", [1, 2, 3, 40])
def test_the_mean_over_shares_is_the_loss_of_the_whole_and_equal_on_all_ranks(
    store: ObjectStore, world_size: int
) -> None:
    def work(rank: int) -> float:
        mine = evaluation(store, rank, world_size)
        mine.publish(5)
        return mine.loss_after(5)

    found = together(world_size, work)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(MEAN, rel=1e-6)
    shares = [json.loads(store.get(RunLayout("run").evaluation(5, rank))) for rank in range(world_size)]
    assert sum(share["sequences"] for share in shares) == 37
    assert max(share["sequences"] for share in shares) == -(-37 // world_size)


def test_the_share_of_a_lost_rank_is_taken_over_after_a_while(store: ObjectStore) -> None:
    time = FakeTime()
    mine = evaluation(store, 0, 3)
    mine.manager._exchange.clock = time.clock()
    mine.publish(2)
    evaluation(store, 2, 3).publish(2)
    assert mine.loss_after(2) == pytest.approx(MEAN, rel=1e-6)
    assert TAKE_OVER_S <= time.now_s <= TAKE_OVER_S + SLOWEST_POLL_S
    assert time.sleeps == sorted(time.sleeps)
    assert json.loads(store.get(RunLayout("run").evaluation(2, 1)))["by"] == 0


def test_the_first_word_on_a_share_stands(store: ObjectStore) -> None:
    """A relaunched process on another machine may come to another last digit: one number for all."""
    evaluation(store, 0, 1).publish(1)
    again = replace(evaluation(store, 0, 1), held_out=ROWS + 1)
    again.publish(1)
    assert again.loss_after(1) == pytest.approx(MEAN, rel=1e-6)
    assert again.has_share(1)
    assert not again.has_share(0)


def test_nobody_waits_while_training_goes_on(store: ObjectStore) -> None:
    """Rank 0 has the loss told once, when the last share has come, and other ranks never."""
    told: list[tuple[int, float]] = []
    later: list[object] = []
    ranks = [evaluation(store, rank, 2) for rank in range(2)]
    for each in ranks:
        each.manager.later = lambda write: later.append(write())  # type: ignore[method-assign]
    ranks[0].publish_later(1, lambda rounds, loss: told.append((rounds, loss)))
    ranks[0].look(lambda rounds, loss: told.append((rounds, loss)))
    assert told == []
    ranks[1].publish_later(1, lambda *_: pytest.fail("rank 1 reports nothing"))
    for _ in range(2):
        ranks[0].look(lambda rounds, loss: told.append((rounds, loss)))
    assert told == [(1, pytest.approx(MEAN, rel=1e-6))]
