"""The log is written once, and everybody reads the same history."""

import json
from dataclasses import replace

import pytest

from tests.support import fault_s3
from tests.support.fault_s3 import Fault, FaultS3
from tests.support.gang import together
from trainer.rendezvous.documents import Contribution, MeanSlice, Member, Roster, digest
from trainer.rendezvous.errors import DamagedObject, ForeignObject
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.run_log import RunLog


def contribution(run_id: str = "run", round_index: int = 0, rank: int = 0, claim: int = 0) -> Contribution:
    return Contribution(
        run_id=run_id, round=round_index, fragment=0, rank=rank, claim=claim,
        local_rank=0, local_world_size=1,
        dtype="fp32", shape=(2,), layout_hash="layout", base_hash="base",
        payload=Payload("key", 8, 8, ("00",)),
    )  # fmt: skip


def contribute(log: RunLog, written: Contribution, round_index: int = 0, rank: int = 0) -> Member:
    body = written.encode()
    log.store.create(log.keys.contribution(round_index, rank), body)
    return Member(rank, written.claim, digest(body))


def test_each_process_gets_a_claim_of_its_own(any_store: ObjectStore) -> None:
    log = RunLog(any_store, "run")
    assert sorted(together(8, lambda _: log.take_claim(3))) == list(range(8))
    assert log.take_claim(4) == 0  # ranks are counted apart


def test_a_process_is_superseded_by_the_next_claim_on_its_rank(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    first = log.take_claim(3)
    log.take_claim(2)
    assert not log.is_superseded(3, first)
    second = log.take_claim(3)
    assert log.is_superseded(3, first)
    assert not log.is_superseded(3, second)


def test_documents_survive_the_trip(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    contribute(log, contribution())
    entry = log.contribution(0, 0)
    assert entry is not None
    assert entry[0] == contribution()


@pytest.mark.parametrize("what", [fault_s3.TRUNCATED, fault_s3.FLIPPED_BIT])
def test_a_document_damaged_on_its_way_is_fetched_again(aws_env: pytest.MonkeyPatch, what: str) -> None:
    """Of any bit: one flipped within a digest leaves JSON as good as before, that names what never was."""
    faults = [
        Fault("GET", name, what, times=2) for name in ("rank_0000.json", "roster.json", "mean_0002.json")
    ]
    with FaultS3(faults) as server:
        aws_env.setenv("AWS_ENDPOINT_URL", server.address)
        log = RunLog(open_store("s3://bucket"), "run")
        ours = log.commit(roster(contribute(log, contribution())))
        slice_ = MeanSlice("run", 0, 2, 0, 0, ours.digest, "fp32", Payload("first", 8, 8, ("00",)))
        log.announce_slice(slice_)
        assert log.members_of(ours) == [contribution()]
        assert log.roster(0) == ours
        assert log.mean_slice(ours, 2) == slice_
        assert server.all_fired()


def test_a_changed_letter_anywhere_in_a_document_is_damage() -> None:
    data = roster(Member(0, 0, "ab")).encode()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(DamagedObject):
            Roster.decode(bytes(changed), "address")


def roster(*members: Member, base_hash: str = "base") -> Roster:
    return Roster("run", 0, base_hash, members, "fp32", ())


def test_the_first_roster_stands(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    first = log.commit(roster(Member(0, 0, "a")))
    assert log.commit(roster(Member(1, 0, "b"), base_hash="other")) == first
    assert log.roster(0) == first
    assert log.roster(1) is None


def test_a_roster_proves_its_contributions(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    found = log.commit(roster(contribute(log, contribution())))
    assert log.members_of(found) == [contribution()]
    store.put(log.keys.contribution(0, 0), contribution(claim=1).encode())  # somebody tampers
    with pytest.raises(ForeignObject, match="round 0 rank 0: .*not the contribution that the round's roster"):
        log.members_of(found)


def test_the_first_announcement_of_a_slice_stands(store: ObjectStore) -> None:
    log, whole = RunLog(store, "run"), roster(Member(0, 0, "a"))
    first = MeanSlice("run", 0, 2, 0, 0, whole.digest, "fp32", Payload("first", 8, 8, ("00",)))
    assert log.mean_slice(whole, 2) is None
    log.announce_slice(first)
    log.announce_slice(replace(first, rank=1))
    assert log.mean_slice(whole, 2) == first


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (contribution(run_id="another"), "run_id is 'another' where 'run' belongs"),
        (contribution(round_index=7), "round is 7 where 0 belongs"),
        (contribution(rank=5), "rank is 5 where 0 belongs"),
    ],
)
def test_a_contribution_in_anothers_place_is_foreign(
    store: ObjectStore, wrong: Contribution, named: str
) -> None:
    log = RunLog(store, "run")
    contribute(log, wrong)
    with pytest.raises(ForeignObject, match=f"rank_0000.json: its {named}"):
        log.contribution(0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80",
        b"[]",
        b'{"run_id": "run"}',
        contribution().encode().replace(b'"rank": 0', b'"rank": "x"'),
    ],
)
def test_a_broken_document_names_its_address(store: ObjectStore, body: bytes) -> None:
    log = RunLog(store, "run")
    store.put(log.keys.contribution(0, 0), body)
    with pytest.raises(DamagedObject, match=r"round_000000/rank_0000.json is not a whole Contribution"):
        log.contribution(0, 0)


def test_an_abort_is_sticky(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    assert log.abort_reason() is None
    log.abort(by="rank 1", reason="first", round_index=2, missing=[0])
    log.abort(by="rank 2", reason="second", round_index=3, missing=[])
    assert log.abort_reason() == "rank 1: first"
    assert json.loads(store.get(log.keys.abort)) == {
        "run_id": "run", "by": "rank 1", "reason": "first", "round": 2, "missing": [0],
    }  # fmt: skip


def test_the_first_result_of_a_rank_stands(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    assert log.publish_result(0, {"weights_hash": "a"}) == {"weights_hash": "a"}
    assert log.publish_result(0, {"weights_hash": "b"}) == {"weights_hash": "a"}
