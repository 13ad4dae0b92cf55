"""One round: who gets a mean, who doesn't, and what the log says of it. test_same_bits.py has its bits."""

import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.gang import base, exchange, standing, state, together
from trainer.rendezvous import allreduce
from trainer.rendezvous.allreduce import Mean, ObjectStoreAllReduce
from trainer.rendezvous.errors import ForeignObject, NonFinite, OddOneOut, PeerLost, ReplicasDiverged
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.state_hash import shared_state_hash
from trainer.rendezvous.wire import Floats


def values(*numbers: float) -> Floats:
    return np.array(numbers, np.float32)


def run_round(store: ObjectStore, tensors: list[Floats], **options: Any) -> list[Mean]:
    size, start = len(tensors), base(len(tensors[0]))
    return together(
        size, lambda rank: exchange(store, rank, size, **options).run(0, tensors[rank].copy(), start)
    )


def test_every_rank_gets_the_mean(any_store: ObjectStore) -> None:
    means = run_round(any_store, [values(1.0, 2.0), values(3.0, 6.0), values(5.0, 1.0)])
    assert [mean.values.tolist() for mean in means] == [[3.0, 3.0]] * 3


def test_start_returns_at_once_and_works_in_place(store: ObjectStore) -> None:
    """The peer is late: nobody waits for it but the future."""
    tensor = torch.tensor([1.0])
    future: Future[Mean] = exchange(store, 0, 2).start(0, 0, tensor, lambda: state(torch.zeros(1)))
    assert not future.done()
    peer = exchange(store, 1, 2).run(0, values(3.0), base(1))
    assert future.result(30).values.tolist() == peer.values.tolist() == [2.0]
    assert tensor.tolist() == [2.0]


def test_the_log_of_a_round_tells_who_gave_what(store: ObjectStore) -> None:
    run_round(store, [values(1.0), values(3.0)])
    log = standing(store, 0).log
    roster = log.roster(0)
    assert roster is not None
    assert roster.base_hash == shared_state_hash(state(torch.zeros(1)))
    assert [member.rank for member in roster.members] == [0, 1]
    first = log.members_of(roster)[0]
    assert (first.local_rank, first.local_world_size, first.dtype, first.shape) == (0, 1, "fp32", (1,))
    assert first.payload.key == "diloco-data/run/round_000000/rank_0000.c0.bin"
    assert store.get(first.payload.key) == values(1.0).tobytes()


def test_a_restarted_process_never_writes_over_what_its_earlier_life_put(store: ObjectStore) -> None:
    """Rule 1: the claim is part of the key, so a contribution keeps pointing at its own bytes."""
    first = exchange(store, 0, 2)
    first_life = threading.Thread(target=lambda: _ends(first, values(1.0)))
    first_life.start()
    _until(lambda: bool(first.log.contributions(0, [0])))
    first.standing.stop.set()  # it dies having contributed
    first_life.join()
    second_life, tensors = exchange(store, 0, 2), [values(50.0), values(3.0)]
    lives = [second_life, exchange(store, 1, 2)]
    results = together(2, lambda rank: lives[rank].run(0, tensors[rank], base(1)))
    first_payload = store.get("diloco-data/run/round_000000/rank_0000.c0.bin")
    assert first_payload == values(1.0).tobytes()
    # Rule 2: the first contribution stands, and everybody, its own later life too, averages those bytes.
    assert [mean.values.tolist() for mean in results] == [[2.0], [2.0]]


def _ends(reduce: ObjectStoreAllReduce, tensor: Floats) -> None:
    with pytest.raises(Exception, match="asked to stop"):
        reduce.run(0, tensor, base(1))


def _until(condition) -> None:  # type: ignore[no-untyped-def]
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never happened")


def test_nothing_is_averaged_before_the_roster_stands(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 6: published before applied."""
    seen: list[bool] = []
    original = allreduce.average_whole

    def checked(*given):  # type: ignore[no-untyped-def]
        seen.append(standing_log.roster(0) is not None)
        return original(*given)

    standing_log = standing(store, 7).log
    monkeypatch.setattr(allreduce, "average_whole", checked)
    run_round(store, [values(1.0), values(3.0)])
    assert seen == [True, True]


def test_a_process_below_the_head_takes_what_was_agreed_and_contributes_nothing(store: ObjectStore) -> None:
    """Rule 8."""
    run_round(store, [values(1.0), values(3.0)])
    before = store.keys("diloco-data/run") + store.keys("diloco-rdv/run/log")
    late = exchange(store, 0, 2)
    mean = late.run(0, values(70.0), base(1))
    assert mean.values.tolist() == [2.0]
    assert not mean.event.contributed
    assert store.keys("diloco-data/run") + store.keys("diloco-rdv/run/log") == before


def test_the_odd_one_leaves_and_the_majority_goes_on(store: ObjectStore) -> None:
    """Rule 9, with one weight flipped in one of three replicas."""

    def work(rank: int) -> Mean | OddOneOut:
        weights = torch.tensor([1e-7 if rank == 1 else 0.0])
        try:
            return exchange(store, rank, 3).run(0, values(float(rank)), base(1, weights))
        except OddOneOut as error:
            return error

    first, odd, last = together(3, work)
    assert isinstance(first, Mean) and isinstance(last, Mean)
    assert first.values.tolist() == last.values.tolist() == [1.0]
    assert isinstance(odd, OddOneOut)
    assert "rank 1 round 0: this replica's shared weights" in str(odd)


def test_without_a_majority_the_run_is_given_up_naming_the_ranks(store: ObjectStore) -> None:
    def work(rank: int) -> None:
        with pytest.raises((ReplicasDiverged, PeerLost), match="rank 0 .* rank 1"):
            exchange(store, rank, 2).run(0, values(1.0), base(1, torch.tensor([float(rank)])))

    together(2, work)
    log = standing(store, 0).log
    assert "none has a majority: rank 0" in str(log.abort_reason())
    assert log.roster(0) is None


def test_momentum_belongs_to_the_shared_state() -> None:
    def with_momentum(momentum: torch.Tensor) -> str:
        outer = {"state": {0: {"momentum_buffer": momentum}}, "param_groups": []}
        return shared_state_hash({"original_parameters": {"w": torch.zeros(2)}, "outer_optimizer": outer})

    assert with_momentum(torch.zeros(2)) != with_momentum(torch.ones(2))


def test_what_an_earlier_life_gave_of_another_layout_is_foreign(store: ObjectStore) -> None:
    """Its contribution stands, so it must fit: it would be averaged by everybody."""
    earlier = exchange(store, 0, 1)
    earlier.run(0, np.zeros(2, np.float32), base(2))
    later = exchange(store, 0, 1)
    with pytest.raises(ForeignObject, match="its fragment is 0 where 1 belongs"):
        later.run(0, np.zeros(2, np.float32), base(2, fragment=1))
    other_names = replace(base(2), layout_hash="other names")
    with pytest.raises(ForeignObject, match="its layout_hash is"):
        later.run(0, np.zeros(2, np.float32), other_names)


def test_a_peer_with_another_model_is_foreign(store: ObjectStore) -> None:
    def work(rank: int) -> None:
        with pytest.raises(ForeignObject, match=r"its shape is \(\d,\) where \(\d,\) belongs"):
            exchange(store, rank, 2).run(0, np.zeros(1 + rank, np.float32), base(1 + rank))

    together(2, work)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("position", [0, 2**18 - 1, 2**18, 600_000])  # it is looked at in pieces of 2^18
def test_a_non_finite_pseudo_gradient_is_never_sent(store: ObjectStore, value: float, position: int) -> None:
    numbers = np.ones(600_001, np.float32)
    numbers[position] = value
    with pytest.raises(NonFinite, match="rank 0 round 4: the pseudo-gradient holds NaN or infinity"):
        exchange(store, 0, 2).run(4, numbers, base(len(numbers)))
    assert store.keys("diloco-data") == []


def test_a_round_of_a_run_that_was_given_up_does_not_start(store: ObjectStore) -> None:
    reduce = exchange(store, 0, 2)
    reduce.log.abort(by="rank 1", reason="no more", round_index=None, missing=[])
    with pytest.raises(PeerLost, match="given up by rank 1: no more"):
        reduce.run(0, values(1.0), base(1))
    assert store.keys("diloco-data") == []


def test_the_event_says_what_a_round_took(store: ObjectStore) -> None:
    mean = run_round(store, [np.zeros(100, np.float32)] * 2)[0]
    written = json.loads(mean.event.encode())
    assert (written["sent_bytes"], written["received_bytes"]) == (400, 400)
    assert set(written) >= {"put_s", "waited_s", "waited_for", "fetched_s", "applied_s", "started_at"}
