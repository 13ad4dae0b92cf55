"""The manager as torchft sees it, and the sign of life that it gives."""

import json
from collections.abc import Iterator

import pytest
import torch

from tests.support.gang import manager, standing, state
from trainer.rendezvous.errors import AccessDenied, PeerLost
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.object_store import ObjectStore

W = torch.zeros(3)


@pytest.fixture
def alone(store: ObjectStore) -> Iterator[ObjectStoreManager]:
    """The manager of a run of one replica, with one fragment registered."""
    made = manager(store, 0, 1)
    made.register_state_dict_fn("StreamingDiLoCoFragment_0", lambda _: None, lambda: state(W))
    yield made
    made._reporter.close("finished")


def test_it_has_all_that_torchft_asks_of_a_manager() -> None:
    asked = {
        "_use_async_quorum", "register_state_dict_fn", "disallow_state_dict_read", "allow_state_dict_read",
        "start_quorum", "current_step", "allreduce", "should_commit",
    }  # fmt: skip
    assert asked <= set(dir(ObjectStoreManager))
    assert ObjectStoreManager._use_async_quorum is False


def test_the_step_advances_on_commit_and_not_at_the_start(alone: ObjectStoreManager) -> None:
    """As torchft's own manager does; advancing in start_quorum would skip fragment 0."""
    alone.start_quorum()
    assert alone.current_step() == 0
    alone.allreduce(torch.tensor([2.0])).wait()
    assert alone.current_step() == 0
    assert alone.should_commit() is True
    assert alone.current_step() == 1


def test_wait_puts_the_mean_into_the_callers_tensor_and_runs_its_callbacks(alone: ObjectStoreManager) -> None:
    tensor, seen = torch.tensor([[2.0, 4.0]]), []
    work = alone.allreduce(tensor)
    work.get_future().then(lambda future: seen.append(future.value()[0].tolist()))
    assert work.wait() and work.wait()  # a second wait changes nothing
    assert seen == [[[2.0, 4.0]]]


def test_a_second_all_reduce_in_a_round_is_refused_with_the_remedy(alone: ObjectStoreManager) -> None:
    alone.allreduce(torch.tensor([2.0]))
    with pytest.raises(RuntimeError, match="one bucket a fragment: use_bucketization=True"):
        alone.allreduce(torch.tensor([2.0]))


def test_torchfts_quantisation_is_refused(alone: ObjectStoreManager) -> None:
    with pytest.raises(ValueError, match="should_quantize"):
        alone.allreduce(torch.tensor([2.0]), should_quantize=True)


def test_a_failed_round_raises_in_wait_and_never_commits(store: ObjectStore) -> None:
    made = manager(store, 0, 2)
    made.register_state_dict_fn("StreamingDiLoCoFragment_0", lambda _: None, lambda: state(W))
    tensor = torch.tensor([2.0])
    made.log.abort(by="rank 1", reason="gone", round_index=None, missing=[])
    work = made.allreduce(tensor)
    with pytest.raises(PeerLost):
        work.wait()
    with pytest.raises(PeerLost):
        made.should_commit()
    assert (made.current_step(), tensor.tolist()) == (0, [2.0])


def test_a_commit_writes_one_event_object(alone: ObjectStoreManager, store: ObjectStore) -> None:
    alone.allreduce(torch.tensor([2.0])).wait()
    alone.should_commit()
    alone._reporter.close("finished")
    assert store.keys("diloco-rdv/run/events") == ["diloco-rdv/run/events/round_000000/rank_0000.json"]
    event = json.loads(store.get("diloco-rdv/run/events/round_000000/rank_0000.json"))
    assert (event["round"], event["rank"], event["claim"], event["contributed"]) == (0, 0, 0, True)


def test_progress_is_there_from_the_start_and_follows_the_inner_steps(store: ObjectStore) -> None:
    made = manager(store, 0, 1)
    key = made.log.keys.progress(0)
    assert json.loads(store.get(key))["state"] == "starting"
    for _ in range(3):
        made.disallow_state_dict_read()
        made.allow_state_dict_read()
    made.report(loss=1.5)
    made._reporter.close("finished")
    assert json.loads(store.get(key)) == {
        "run_id": "run", "rank": 0, "claim": 0, "state": "finished", "round": 0, "inner_step": 3, "loss": 1.5,
    }  # fmt: skip


def test_a_denied_write_in_the_background_surfaces_in_the_next_round(alone: ObjectStoreManager) -> None:
    def denied() -> None:
        raise AccessDenied("PUT s3://bucket/metrics was denied")

    alone.later(denied)
    alone._reporter._thread.join(30)
    with pytest.raises(AccessDenied, match="metrics was denied"):
        alone.start_quorum()
    alone._reporter.failure = None


def test_initial_weights_are_those_of_the_first_who_comes(store: ObjectStore) -> None:
    first, second = manager(store, 0, 2), manager(store, 1, 2)
    ours, theirs = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([9.0, 9.0])}
    first.share_initial(ours)
    second.share_initial(theirs)
    assert theirs["w"].tolist() == ours["w"].tolist() == [1.0, 2.0]
    again = {"w": torch.zeros(2)}
    manager(store, 0, 2).share_initial(again)  # a relaunch of the first loads them too
    assert again["w"].tolist() == [1.0, 2.0]


def test_initial_weights_of_another_model_are_refused_by_name(store: ObjectStore) -> None:
    manager(store, 0, 2).share_initial({"w": torch.zeros(2), "x": torch.zeros(1)})
    with pytest.raises(
        Exception, match=r"rank 1: .*initial/manifest.json is of another model.*\['w', 'x', 'y'\]"
    ):
        manager(store, 1, 2).share_initial({"w": torch.zeros(3), "y": torch.zeros(1)})


def test_catching_up_applies_every_mean_in_order(store: ObjectStore) -> None:
    first = manager(store, 0, 1)
    first.register_state_dict_fn("StreamingDiLoCoFragment_0", lambda _: None, lambda: state(W))
    for value in (1.0, 2.0, 3.0):
        first.allreduce(torch.tensor([value])).wait()
        first.should_commit()
    late, applied = manager(store, 0, 1), []
    assert late.catch_up(lambda index, mean: applied.append((index, mean.tolist())), lambda _: 1) == 3
    assert applied == [(0, [1.0]), (1, [2.0]), (2, [3.0])]


def test_a_missing_mean_is_never_skipped(store: ObjectStore) -> None:
    first = manager(store, 0, 1)
    first.register_state_dict_fn("StreamingDiLoCoFragment_0", lambda _: None, lambda: state(W))
    first.allreduce(torch.tensor([1.0])).wait()
    roster = standing(store, 0).log.roster(0)
    assert roster is not None
    store.put("diloco-data/run/round_000000/rank_0000.c0.bin", b"")  # expired, or cut short
    late = manager(store, 0, 1)
    with pytest.raises(Exception, match=r"round 0 rank 0: .*rank_0000.c0.bin is damaged"):
        late.catch_up(lambda *_: None, lambda _: 1)
