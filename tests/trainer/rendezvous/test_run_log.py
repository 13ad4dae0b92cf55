"""The log is written once, and everybody reads the same history."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.support import s3_faults
from tests.support.fault_s3 import FaultS3
from tests.support.gang import together
from tests.support.s3_faults import Fault
from tests.support.stores import on_fault_server
from trainer.rendezvous.documents import Contribution, MeanSlice, Member, Roster, digest
from trainer.rendezvous.errors import DamagedObject, ForeignObject
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.payload import FETCH_ATTEMPTS, Payload
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
    assert log.abort_and_successor(3, first) == (None, False)
    second = log.take_claim(3)
    assert log.abort_and_successor(3, first) == (None, True)
    assert log.abort_and_successor(3, second) == (None, False)


def test_documents_survive_the_trip(store: ObjectStore) -> None:
    log = RunLog(store, "run")
    contribute(log, contribution())
    found = log.contributions(0, [1, 0, 2])  # the others have none
    assert list(found) == [0]
    assert found[0][0] == contribution()


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
    assert log.mean_slices(whole, [2]) == {}
    log.announce_slice(first)
    log.announce_slice(replace(first, rank=1))
    assert log.mean_slices(whole, [0, 2]) == {2: first}


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
        log.contributions(0, [0])


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
        log.contributions(0, [0])


def test_no_flipped_bit_and_no_cut_of_a_document_goes_unnoticed() -> None:
    """Not even where whole JSON is left: in a digest, a number, a name."""
    whole = contribution().encode()
    for at in range(len(whole)):
        with pytest.raises(DamagedObject):
            Contribution.decode(whole[:at], "here")
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(DamagedObject):
                Contribution.decode(bytes(damaged), "here")


@dataclass(frozen=True)
class Kind:
    """A kind of document: its key, what it is, how it is written and how it is read."""

    key_end: str
    where: str
    write: Callable[[RunLog], object]
    read: Callable[[RunLog], object]


COMMITTED = roster(Member(0, 0, "a"))
KINDS = {
    "contribution": Kind(
        "rank_0000.json", "round 0 rank 0", lambda log: log.contribute(contribution()),
        lambda log: log.contributions(0, [0]),
    ),
    "contributed": Kind(
        "rank_0000.json", "round 0 rank 0", lambda log: log.contribute(contribution()),
        lambda log: log.contribute(contribution(claim=1)),
    ),
    "roster": Kind(
        "roster.json", "round 0 roster", lambda log: log.commit(COMMITTED), lambda log: log.roster(0)
    ),
    "committed": Kind(
        "roster.json", "round 0 roster", lambda log: log.commit(COMMITTED),
        lambda log: log.commit(roster(Member(1, 0, "b"))),
    ),
    "slice": Kind(
        "mean_0002.json", "round 0 slice 2",
        lambda log: log.announce_slice(
            MeanSlice("run", 0, 2, 0, 0, COMMITTED.digest, "fp32", Payload("k", 8, 8, ("00",)))
        ),
        lambda log: log.mean_slices(COMMITTED, [2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", [s3_faults.FLIPPED_BIT, s3_faults.TRUNCATED])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_document_damaged_in_flight_is_fetched_again(kind: Kind, what: str) -> None:
    with FaultS3() as server:
        log = RunLog(on_fault_server(server), "run")
        kind.write(log)
        expected = kind.read(log)
        server.faults.append(Fault("GET", kind.key_end, what, times=FETCH_ATTEMPTS - 1))
        assert kind.read(log) == expected
        assert server.all_fired()


@pytest.mark.parametrize("what", [s3_faults.FLIPPED_BIT, s3_faults.TRUNCATED])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_document_that_stays_damaged_names_key_rank_and_round(kind: Kind, what: str) -> None:
    with FaultS3() as server:
        log = RunLog(on_fault_server(server), "run")
        kind.write(log)
        server.faults.append(Fault("GET", kind.key_end, what, times=FETCH_ATTEMPTS))
        with pytest.raises(DamagedObject, match=rf"^{kind.where}: s3://.*/{kind.key_end} .*fetched 3 times"):
            kind.read(log)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_stale_or_foreign_document_is_fetched_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """What a cache might hand out: whole, and of another place in the log."""
    log = RunLog(store, "run")
    contribute(log, contribution())
    answers = [contribution(round_index=7).encode()] * times
    found = store.get
    monkeypatch.setattr(store, "get", lambda key: answers.pop() if answers else found(key))
    monkeypatch.setattr(store, "find_all", lambda keys: [store.get(key) for key in keys])
    if times < FETCH_ATTEMPTS:
        assert log.contributions(0, [0]) == {0: (contribution(), digest(contribution().encode()))}
    else:
        with pytest.raises(ForeignObject, match="^round 0 rank 0: .*rank_0000.json: its round is 7 where 0"):
            log.contributions(0, [0])
    assert answers == []


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
