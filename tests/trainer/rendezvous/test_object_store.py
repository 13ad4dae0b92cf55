"""What every store promises, on memory, a folder and S3 over HTTP; and the answers S3 gives in doubt."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import S3Store

from tests.support import fault_s3
from tests.support.fault_s3 import RIVAL, Fault, FaultS3
from tests.support.gang import together
from trainer.rendezvous.errors import AbsentObject, AccessDenied, DamagedObject, StoreFailed
from trainer.rendezvous.object_store import PART_BYTES, ObjectStore, open_store


def test_what_is_put_is_read_and_listed(any_store: ObjectStore) -> None:
    any_store.put("a/b.json", b"one")
    any_store.put("a/c/d.json", b"two")
    assert any_store.get("a/b.json") == b"one"
    assert any_store.find("a/none") is None
    assert any_store.names("a") == ["b.json", "c"]
    assert any_store.keys("a") == ["a/b.json", "a/c/d.json"]
    assert any_store.names("nothing") == any_store.keys("nothing") == []


def test_an_absent_object_is_named_by_its_address(any_store: ObjectStore) -> None:
    with pytest.raises(AbsentObject, match="a/none: no such object"):
        any_store.get("a/none")
    with pytest.raises(AbsentObject, match="a/none"):
        any_store.read_range("a/none", 0, 1)


def test_a_range_is_those_bytes(any_store: ObjectStore) -> None:
    any_store.put("k", bytes(range(100)))
    assert any_store.read_range("k", 90, 7) == bytes(range(90, 97))


@pytest.mark.parametrize("offset", [95, 100, 200])
def test_a_range_past_the_end_is_damage(any_store: ObjectStore, offset: int) -> None:
    any_store.put("k", bytes(100))
    with pytest.raises(DamagedObject, match="k ends at byte 100, but its manifest needs .*truncated"):
        any_store.read_range("k", offset, 10)


def test_an_object_of_several_parts_arrives_whole(any_store: ObjectStore) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256 + 1000)
    any_store.put("large", memoryview(data))
    assert any_store.get("large") == data


def test_a_stream_of_parts_arrives_whole(any_store: ObjectStore) -> None:
    parts = [bytes([n]) * (PART_BYTES // 3) for n in range(7)]
    any_store.put_stream("large", iter(parts))
    assert any_store.get("large") == b"".join(parts)


def test_of_16_writers_of_one_key_one_wins_and_all_use_its_bytes(any_store: ObjectStore) -> None:
    stands = together(16, lambda rank: any_store.create("k", b"%d" % rank))
    assert len(set(stands)) == 1
    assert any_store.get("k") == stands[0]


def test_create_never_overwrites(any_store: ObjectStore) -> None:
    assert any_store.create("k", b"first") == b"first"
    assert any_store.create("k", b"second") == b"first"
    assert any_store.get("k") == b"first"


@pytest.fixture
def faulty() -> Iterator[tuple[FaultS3, ObjectStore]]:
    """A store on the fault server, that retries nothing by itself and gives up after three seconds."""
    with FaultS3() as server:
        waited = [0.0]

        def sleep(seconds: float) -> None:
            waited[0] += seconds

        s3 = S3Store(
            "bucket", endpoint=server.address, region="us-east-1", access_key_id="x", secret_access_key="x",
            virtual_hosted_style_request=False, client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        )  # fmt: skip
        yield server, ObjectStore(s3, "s3://bucket", retry_s=3, now=lambda: waited[0], sleep=sleep)
        assert server.all_fired(), "a fault that did not happen proves nothing"


Faulty = tuple[FaultS3, ObjectStore]


@pytest.mark.parametrize("what", [fault_s3.LOST_ANSWER, fault_s3.STORED_503])
def test_a_put_whose_answer_is_lost_counts(faulty: Faulty, what: str) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", what))
    assert store.create("k", b"mine") == b"mine"
    assert server.objects["k"] == b"mine"


@pytest.mark.parametrize("what", [fault_s3.REFUSED_409, fault_s3.REFUSED_503])
def test_a_put_that_did_not_land_is_put_again(faulty: Faulty, what: str) -> None:
    """S3's 409 means that nothing was stored, though obstore reports it as AlreadyExists."""
    server, store = faulty
    server.faults.append(Fault("PUT", "k", what, times=2))
    assert store.create("k", b"mine") == b"mine"
    assert server.objects["k"] == b"mine"
    assert [verb for verb, _ in server.requests] == ["PUT", "GET", "PUT", "GET", "PUT"]


def test_after_412_the_bytes_that_stand_are_used_not_ours(faulty: Faulty) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", fault_s3.RIVAL_FIRST))
    assert store.create("k", b"mine") == RIVAL


def test_a_lost_answer_does_not_make_a_rivals_bytes_ours(faulty: Faulty) -> None:
    server, store = faulty
    server.objects["k"] = RIVAL
    server.faults.append(Fault("PUT", "k", fault_s3.LOST_ANSWER))
    assert store.create("k", b"mine") == RIVAL


def test_a_denied_create_fails_at_once(faulty: Faulty) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", fault_s3.DENIED))
    with pytest.raises(AccessDenied, match=r"PUT s3://bucket/k was denied: allow this identity s3:PutObject"):
        store.create("k", b"mine")
    assert server.requests == [("PUT", "k")]


def test_a_store_that_never_takes_a_put_is_an_error_that_names_the_key(faulty: Faulty) -> None:
    server, store = faulty
    server.faults.append(Fault("PUT", "k", fault_s3.REFUSED_503, times=1000))
    with pytest.raises(StoreFailed, match="PUT s3://bucket/k failed.*503"):
        store.create("k", b"mine")


def test_a_failing_read_is_not_taken_for_absence(faulty: Faulty) -> None:
    server, store = faulty
    server.faults += [Fault("GET", "k", fault_s3.REFUSED_503), Fault("GET", "denied", fault_s3.DENIED)]
    with pytest.raises(StoreFailed, match="GET s3://bucket/k failed"):
        store.find("k")
    with pytest.raises(AccessDenied, match="GET s3://bucket/denied was denied: .* s3:GetObject on"):
        store.find("denied")


def test_a_range_answered_as_past_the_end_of_a_whole_object_is_damage(faulty: Faulty) -> None:
    """What is damaged is fetched again; a store that fails ends the process."""
    server, store = faulty
    store.put("k", bytes(range(100)))
    server.faults += [Fault("GET", "k", fault_s3.TRUNCATED)]
    with pytest.raises(DamagedObject, match="k: answered as if it ended before 90"):
        store.read_range("k", 90, 5)
    assert store.read_range("k", 90, 5) == bytes(range(90, 95))


def test_a_denied_listing_is_no_failing_store(faulty: Faulty) -> None:
    """A relaunch would be denied as well."""
    server, store = faulty
    server.faults.append(Fault("GET", "", fault_s3.DENIED, times=2))
    for listing in (store.names, store.keys):
        with pytest.raises(AccessDenied, match="LIST s3://bucket/a was denied: .* s3:ListBucket on"):
            listing("a")
    assert server.all_fired()


def test_a_request_is_retried_for_its_time_and_not_a_number_of_times(aws_env: pytest.MonkeyPatch) -> None:
    """Twelve refusals are more than obstore's ten retries, which may be over within two seconds."""
    with FaultS3([Fault("PUT", "k", fault_s3.REFUSED_503, times=12)]) as server:
        aws_env.setenv("AWS_ENDPOINT_URL", server.address)
        open_store("s3://bucket").put("k", b"x")
        assert server.objects["k"] == b"x"
        assert server.faults[0].fired == 12


def test_uploads_of_several_parts_at_once_keep_apart(aws_env: pytest.MonkeyPatch) -> None:
    with FaultS3() as server:
        aws_env.setenv("AWS_ENDPOINT_URL", server.address)
        store = open_store("s3://bucket")
        data = [bytes([rank]) * (PART_BYTES + 1) for rank in range(6)]
        together(6, lambda rank: [store.put(f"k{rank}-{n}", data[rank]) for n in range(3)])
        assert all(server.objects[f"k{rank}-{n}"] == data[rank] for rank in range(6) for n in range(3))


def test_a_missing_bucket_is_named(s3_bucket: str) -> None:
    with pytest.raises(AbsentObject, match=r"s3://no-such-bucket/k: the bucket or folder does not exist"):
        open_store("s3://no-such-bucket").create("k", b"x")


@pytest.mark.parametrize("uri", ["http://host", "s3://", "s3://bucket/prefix", "bucket", "file://host/x"])
def test_an_address_that_is_no_store_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="must be s3://BUCKET"):
        open_store(uri)


def test_without_credentials_the_error_says_so(aws_env: pytest.MonkeyPatch) -> None:
    aws_env.delenv("AWS_ACCESS_KEY_ID")
    aws_env.delenv("AWS_SECRET_ACCESS_KEY")
    aws_env.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDenied, match="boto3 finds no usable credentials"):
        open_store("s3://bucket")


def test_the_endpoint_is_the_one_boto3_finds(
    moto_endpoint: str, s3_bucket: str, aws_env: pytest.MonkeyPatch
) -> None:
    """The service's own variable wins over the general one, as in boto3."""
    aws_env.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody answers there
    aws_env.setenv("AWS_ENDPOINT_URL_S3", moto_endpoint)
    store = open_store(s3_bucket)
    store.put("k", b"x")
    assert store.get("k") == b"x"


def test_a_folder_is_made_where_it_is_missing(tmp_path: Path) -> None:
    store = open_store((tmp_path / "new" / "folder").as_uri())
    store.put("k", b"x")
    assert (tmp_path / "new" / "folder" / "k").read_bytes() == b"x"
