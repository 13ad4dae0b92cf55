"""What the store does when S3 misbehaves: answers in doubt, faults that pass and that stay, denials."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import s3_faults
from tests.support.fault_s3 import FaultS3
from tests.support.gang import together
from tests.support.s3_faults import RIVAL, Fault
from tests.support.stores import on_fault_server
from trainer.rendezvous import object_store, s3_store
from trainer.rendezvous.errors import AccessDenied, StoreFailed
from trainer.rendezvous.object_store import PART_BYTES, ObjectStore, open_store

DATA = bytes(range(256)) * 4


@pytest.fixture
def server(aws_env: pytest.MonkeyPatch) -> Iterator[FaultS3]:
    with FaultS3() as running:
        aws_env.setenv("AWS_ENDPOINT_URL", running.address)
        yield running
        assert running.all_fired(), "a fault that did not happen proves nothing"


@pytest.fixture
def faulty(server: FaultS3) -> tuple[FaultS3, ObjectStore]:
    """A store that retries nothing by itself and gives up after three seconds."""
    return server, on_fault_server(server)


Faulty = tuple[FaultS3, ObjectStore]


@pytest.mark.parametrize("what", [s3_faults.LOST_ANSWER, s3_faults.STORED_503])
def test_a_put_whose_answer_is_lost_counts(faulty: Faulty, what: str) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", what))
    assert store.create("k", b"mine") == b"mine"
    assert server.objects["k"] == b"mine"


@pytest.mark.parametrize("what", [s3_faults.REFUSED_409, s3_faults.REFUSED_503])
def test_a_put_that_did_not_land_is_put_again(faulty: Faulty, what: str) -> None:
    """S3's 409 means that nothing was stored, though obstore reports it as AlreadyExists."""
    server, store = faulty
    server.faults.append(Fault("PUT", "k", what, times=2))
    assert store.create("k", b"mine") == b"mine"
    assert server.objects["k"] == b"mine"
    assert [verb for verb, _ in server.requests] == ["PUT", "GET", "PUT", "GET", "PUT"]


def test_after_412_the_bytes_that_stand_are_used_not_ours(faulty: Faulty) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", s3_faults.RIVAL_FIRST))
    assert store.create("k", b"mine") == RIVAL


def test_a_lost_answer_does_not_make_a_rivals_bytes_ours(faulty: Faulty) -> None:
    server, store = faulty
    server.objects["k"] = RIVAL
    server.faults.append(Fault("PUT", "k", s3_faults.LOST_ANSWER))
    assert store.create("k", b"mine") == RIVAL


def test_a_denied_create_fails_at_once(faulty: Faulty) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", s3_faults.DENIED))
    with pytest.raises(AccessDenied, match=r"PUT s3://bucket/k was denied: allow this identity s3:PutObject"):
        store.create("k", b"mine")
    assert server.requests == [("PUT", "k")]


def test_a_store_that_never_takes_a_put_is_an_error_that_names_the_key(faulty: Faulty) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", s3_faults.REFUSED_503, times=1000))
    with pytest.raises(StoreFailed, match="PUT s3://bucket/k failed.*503"):
        store.create("k", b"mine")


def test_a_failing_read_is_not_taken_for_absence(faulty: Faulty) -> None:
    server, store = faulty
    server.faults += [Fault("GET", "k", s3_faults.REFUSED_503), Fault("GET", "denied", s3_faults.DENIED)]
    with pytest.raises(StoreFailed, match="GET s3://bucket/k failed"):
        store.find("k")
    with pytest.raises(AccessDenied, match="GET s3://bucket/denied was denied: .* s3:GetObject on"):
        store.find("denied")


def test_a_denied_listing_is_no_failing_store(faulty: Faulty) -> None:
    """A relaunch would be denied as well."""
    server, store = faulty
    server.faults.append(Fault("GET", "", s3_faults.DENIED, times=2))
    for listing in (store.names, store.keys):
        with pytest.raises(AccessDenied, match="LIST s3://bucket/a was denied: .* s3:ListBucket on"):
            listing("a")
    assert server.all_fired()


def test_writers_that_collided_wait_for_different_times() -> None:
    """Longer each time, up to a bound, and drawn from the upper half of it."""
    drawn: list[tuple[float, float]] = []

    def pauses(**options: Any) -> list[float]:
        slept: list[float] = []
        with FaultS3([Fault("PUT", "k", s3_faults.REFUSED_409, times=1000)]) as server:
            inner = on_fault_server(server)._store
            clock = {"now": lambda: sum(slept), "sleep": slept.append}
            with pytest.raises(StoreFailed):
                ObjectStore(inner, "s3://bucket", retry_s=20, **clock, **options).create("k", b"x")
        return slept

    assert pauses()[0] != pauses()[0]
    assert pauses(jitter=lambda low, high: drawn.append((low, high)) or high)[-1] == 5
    assert drawn[:3] == [(0.025, 0.05), (0.05, 0.1), (0.1, 0.2)]
    assert all(low == high / 2 for low, high in drawn)


# Each operation in a bucket that holds DATA as "k": the verb and key of its request, and its answer.
OPERATIONS: dict[str, tuple[Callable[[ObjectStore], object], str, str, object]] = {
    "get": (lambda store: store.get("k"), "GET", "k", DATA),
    "find_all": (lambda store: store.find_all(["k"]), "GET", "k", [DATA]),
    "read_range": (lambda store: bytes(store.read_range("k", 256, 256)), "GET", "k", DATA[256:512]),
    "put": (lambda store: store.put("new", DATA), "PUT", "new", None),
    "create": (lambda store: store.create("new", DATA), "PUT", "new", DATA),
    "names": (lambda store: store.names(""), "GET", "", ["k"]),
    "keys": (lambda store: store.keys(""), "GET", "", ["k"]),
}
PASSING = (s3_faults.REFUSED_500, s3_faults.REFUSED_503, s3_faults.RESET, s3_faults.NO_ANSWER)
IN_ANSWERS = (s3_faults.RESET_MID_BODY, s3_faults.SLOW_DRIP)


@pytest.fixture
def stored(server: FaultS3, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store as replicas open it, but for the time-out of a request; it holds DATA under "k"."""
    monkeypatch.setattr(s3_store, "REQUEST_TIMEOUT_S", 1)
    server.objects["k"] = DATA
    return open_store("s3://bucket")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (name, what)
        for name, (_, verb, _, _) in OPERATIONS.items()
        for what in PASSING + (IN_ANSWERS if verb == "GET" else ())
    ],
)
def test_a_fault_that_passes_is_not_seen(server: FaultS3, stored: ObjectStore, name: str, what: str) -> None:
    operate, verb, key, answer = OPERATIONS[name]
    server.faults.append(Fault(verb, key, what, times=1 if what == s3_faults.NO_ANSWER else 2))
    assert operate(stored) == answer
    assert set(server.objects) == ({"k", "new"} if verb == "PUT" else {"k"})
    assert all(data == DATA for data in server.objects.values())


@pytest.mark.parametrize("name", ["get", "find_all"])
def test_an_answer_that_shrinks_while_it_is_resumed_is_not_seen(
    server: FaultS3, stored: ObjectStore, name: str
) -> None:
    """The client asks for the rest after a reset, and is told that there is less than there was."""
    operate, verb, key, answer = OPERATIONS[name]
    server.faults += [Fault(verb, key, s3_faults.RESET_MID_BODY), Fault(verb, key, s3_faults.TRUNCATED)]
    assert operate(stored) == answer


@pytest.mark.parametrize("what", PASSING)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_that_stays_is_an_error_that_names_the_key(
    server: FaultS3, stored: ObjectStore, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """Not for ever, as the test above might suggest: here to a deadline of a moment."""
    operate, verb, key, _ = OPERATIONS[name]
    monkeypatch.setattr(s3_store, "REQUEST_RETRY_S", 0.3)
    monkeypatch.setattr(s3_store, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(object_store, "RETRY_S", 0.3)
    store = open_store("s3://bucket")
    server.faults.append(Fault(verb, key, what, times=10**6))
    with pytest.raises(StoreFailed, match=f"s3://bucket/{key} failed: "):
        operate(store)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_denied_request_is_made_once(server: FaultS3, stored: ObjectStore, name: str) -> None:
    operate, verb, key, _ = OPERATIONS[name]
    server.faults.append(Fault(verb, key, s3_faults.DENIED, times=10**6))
    with pytest.raises(AccessDenied):
        operate(stored)
    assert server.requests == [(verb, key)]


def test_a_request_is_retried_for_its_time_and_not_a_number_of_times(
    server: FaultS3, stored: ObjectStore
) -> None:
    """Twelve refusals are more than obstore's ten retries, which may be over within two seconds."""
    server.faults.append(Fault("PUT", "new", s3_faults.REFUSED_503, times=12))
    stored.put("new", b"x")
    assert server.objects["new"] == b"x"
    assert server.faults[0].fired == 12


LARGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"  # three parts


@pytest.mark.parametrize(
    ("verb", "what", "after"),
    [
        (verb, what, after)
        for verb, last in (("POST", 1), ("PUT", 2))
        for what in (s3_faults.REFUSED_503, s3_faults.RESET, s3_faults.LOST_ANSWER)
        for after in (0, last)
    ],
)
def test_an_upload_in_parts_outlives_a_fault(server: FaultS3, verb: str, what: str, after: int) -> None:
    """At its beginning, at any part, at its completion, whose retry meets an upload that is no more."""
    server.faults.append(Fault(verb, "large", what, after=after))
    store = open_store("s3://bucket")
    if after == 0:
        store.put("large", LARGE)
    else:
        store.put_stream("large", [LARGE[:PART_BYTES], LARGE[PART_BYTES:]], len(LARGE))
    assert server.objects == {"large": LARGE}


def test_a_completion_that_others_made_impossible_is_a_failure(server: FaultS3, stored: ObjectStore) -> None:
    """The upload is gone, but what lies there isn't what was put: nothing was completed."""
    server.objects["large"] = b"of an earlier time"

    def pieces() -> Iterator[bytes]:
        yield LARGE
        server.uploads.clear()

    with pytest.raises(StoreFailed, match="PUT s3://bucket/large failed: its upload was ended by others"):
        stored.put_stream("large", pieces(), len(LARGE))
    assert server.objects["large"] == b"of an earlier time"


def test_an_upload_that_fails_is_aborted(server: FaultS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of unfinished uploads cost money and are in no listing of objects."""
    monkeypatch.setattr(s3_store, "REQUEST_RETRY_S", 0.3)
    server.faults.append(Fault("PUT", "large", s3_faults.REFUSED_503, times=10**6))
    with pytest.raises(StoreFailed, match="PUT s3://bucket/large failed"):
        open_store("s3://bucket").put("large", LARGE)
    assert server.objects == server.uploads == {}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_large_object_takes_no_more_parts_than_s3_allows(
    server: FaultS3, stored: ObjectStore, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    """Scaled down to two parts; test_object_store.py has the arithmetic of the real sizes."""
    monkeypatch.setattr(object_store, "MOST_PARTS", 2)
    if streamed:
        stored.put_stream("large", [LARGE[:PART_BYTES], LARGE[PART_BYTES:]], len(LARGE))
    else:
        stored.put("large", LARGE)
    assert server.requests.count(("PUT", "large")) == 2
    assert server.objects["large"] == LARGE


def test_uploads_of_several_parts_at_once_keep_apart(server: FaultS3, stored: ObjectStore) -> None:
    data = [bytes([rank]) * (PART_BYTES + 1) for rank in range(6)]
    together(6, lambda rank: [stored.put(f"k{rank}-{n}", data[rank]) for n in range(3)])
    assert all(server.objects[f"k{rank}-{n}"] == data[rank] for rank in range(6) for n in range(3))
