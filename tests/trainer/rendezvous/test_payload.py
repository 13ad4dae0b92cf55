"""No damaged byte gets through: every kind of damage is fetched again, then named."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support import s3_faults
from tests.support.fault_s3 import FaultS3
from tests.support.s3_faults import Fault
from tests.support.stores import on_fault_server
from trainer.rendezvous.errors import AbsentObject, DamagedObject, ForeignObject
from trainer.rendezvous.object_store import PART_BYTES, ObjectStore
from trainer.rendezvous.payload import FETCH_ATTEMPTS, Payload

DATA = bytes(range(256)) * 10
CHUNK = 1000


@pytest.fixture
def server() -> Iterator[FaultS3]:
    with FaultS3() as running:
        yield running
        assert running.all_fired()


@pytest.fixture
def s3(server: FaultS3) -> ObjectStore:
    return on_fault_server(server)


def put(store: ObjectStore) -> Payload:
    return Payload.put(store, "k", memoryview(DATA), CHUNK)


def test_the_checksum_is_crc_64_nvme(store: ObjectStore) -> None:
    """The check value of the CRC catalogue for CRC-64/NVME."""
    assert Payload.put(store, "k", memoryview(b"123456789"), CHUNK).chunk_crc64nvme == ("ae8b14860a799888",)


def test_chunks_cover_the_payload(any_store: ObjectStore) -> None:
    payload = put(any_store)
    assert (payload.size_bytes, len(payload.chunk_crc64nvme)) == (2560, 3)
    assert b"".join(payload.fetch(any_store, "x")) == DATA


def test_an_empty_payload_has_no_chunks(store: ObjectStore) -> None:
    payload = Payload.put(store, "k", memoryview(b""), CHUNK)
    assert payload.chunk_crc64nvme == ()
    assert b"".join(payload.fetch(store, "x")) == b""


@pytest.mark.parametrize("chunk_bytes", [CHUNK, PART_BYTES])
def test_chunks_made_one_by_one_are_the_same_payload(any_store: ObjectStore, chunk_bytes: int) -> None:
    data = DATA if chunk_bytes == CHUNK else bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"
    pieces = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    whole = Payload.put(any_store, "whole", memoryview(data), chunk_bytes)
    made = Payload.put_chunks(any_store, "made", iter(pieces), chunk_bytes, len(pieces))
    assert made == replace(whole, key="made")
    assert any_store.get("made") == any_store.get("whole") == data


@pytest.mark.parametrize("what", [s3_faults.FLIPPED_BIT, s3_faults.TRUNCATED])
@pytest.mark.parametrize("chunk", [0, 1, 2])  # of half an object: whole, cut off, not there
def test_damage_in_flight_heals_by_fetching_again(
    server: FaultS3, s3: ObjectStore, what: str, chunk: int
) -> None:
    payload = put(s3)
    server.faults.append(Fault("GET", "k", what, times=FETCH_ATTEMPTS - 1))
    assert bytes(payload.fetch_chunk(s3, chunk, "x")) == DATA[chunk * CHUNK : (chunk + 1) * CHUNK]


def test_an_answer_that_shrinks_while_it_is_resumed_heals_too(server: FaultS3) -> None:
    """The client asks for the rest after a reset, and is told that there is less than there was."""
    s3 = on_fault_server(server, retries=5)
    payload = put(s3)
    server.faults += [Fault("GET", "k", s3_faults.RESET_MID_BODY), Fault("GET", "k", s3_faults.TRUNCATED)]
    assert bytes(payload.fetch_chunk(s3, 1, "x")) == DATA[CHUNK : 2 * CHUNK]
    for fault in server.faults:
        fault.fired = 0
    assert s3.get("k") == DATA


@pytest.mark.parametrize("what", [s3_faults.FLIPPED_BIT, s3_faults.TRUNCATED])
def test_damage_that_stays_names_rank_round_and_key(server: FaultS3, s3: ObjectStore, what: str) -> None:
    payload = put(s3)
    server.faults.append(Fault("GET", "k", what, times=FETCH_ATTEMPTS))
    with pytest.raises(DamagedObject, match=r"round 3 rank 1: s3://bucket/k is damaged, fetched 3 times: "):
        payload.fetch_chunk(s3, 2, "round 3 rank 1")


def test_the_bytes_of_another_object_are_not_taken_for_these(server: FaultS3, s3: ObjectStore) -> None:
    """Stale or foreign: whole, of the right size, and not what the manifest describes."""
    payload = put(s3)
    server.objects["k"] = DATA[::-1]
    with pytest.raises(DamagedObject, match=r"round 3 rank 1: s3://bucket/k is damaged.*CRC-64/NVME"):
        payload.fetch_chunk(s3, 0, "round 3 rank 1")


def test_a_bit_flipped_at_rest_names_rank_round_and_key(server: FaultS3, s3: ObjectStore) -> None:
    payload = put(s3)
    damaged = bytearray(DATA)
    damaged[1500] ^= 4
    server.objects["k"] = bytes(damaged)
    assert bytes(payload.fetch_chunk(s3, 0, "x")) == DATA[:CHUNK]  # the other chunks are still good
    with pytest.raises(DamagedObject, match=r"round 3 rank 1: s3://bucket/k is damaged.*bytes from 1000"):
        payload.fetch_chunk(s3, 1, "round 3 rank 1")


def test_a_truncated_payload_names_the_key(server: FaultS3, s3: ObjectStore) -> None:
    payload = put(s3)
    server.objects["k"] = DATA[:1500]
    with pytest.raises(DamagedObject, match=r"s3://bucket/k is damaged.*ends at byte 1500"):
        payload.fetch_chunk(s3, 1, "round 3 rank 1")


def test_a_payload_that_is_gone_says_that_it_may_have_expired(server: FaultS3, s3: ObjectStore) -> None:
    payload = put(s3)
    del server.objects["k"]
    with pytest.raises(AbsentObject, match=r"round 3 rank 1: s3://bucket/k is gone.*expired"):
        payload.fetch_chunk(s3, 0, "round 3 rank 1")


def test_a_payload_of_another_size_is_foreign(store: ObjectStore) -> None:
    payload = put(store)
    payload.check_size("here", len(DATA), CHUNK)
    with pytest.raises(
        ForeignObject, match=r"here: its payload has .* \(2560, 1000, 3\) where \(2564, 1000, 3\)"
    ):
        payload.check_size("here", len(DATA) + 4, CHUNK)
