"""What every store promises, asked of each kind: memory, a folder, and three servers that speak S3.

moto is a server that others wrote, ministack the embedded AWS, which checks rights too, and the fault
server the one that other tests have misbehave. What a store answers in trouble is in test_store_faults.py.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_aws import environment
from local_aws.settings import ACCOUNT
from local_aws.supervisor import running
from tests.conftest import ENDPOINT_ENV
from tests.support.fault_s3 import FaultS3
from tests.support.gang import together
from tests.support.s3_faults import DENIED, Fault
from tests.support.stores import Fresh, asked_of_all, fresh_on_disk, fresh_on_http
from trainer.rendezvous.errors import AbsentObject, AccessDenied, DamagedObject
from trainer.rendezvous.object_store import PART_BYTES, ObjectStore

ROOT = Path(__file__).parents[3]
DATA = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The embedded AWS's environment for clients: those of its root."""
    folder = tmp_path_factory.mktemp("local_aws")
    with running(venv=environment.DEFAULT_VENV, state_dir=folder) as server:
        yield server.settings.client_environment()


@pytest.fixture
def fresh(
    kind: str, aws_env: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Fresh]:
    if kind == "memory":
        yield Fresh(kind, "memory://", {})
    elif kind == "file":
        yield fresh_on_disk(tmp_path)
    elif kind == "ministack":
        yield fresh_on_http(kind, request.getfixturevalue("ministack"), aws_env)
    elif kind == "moto":
        endpoint = request.getfixturevalue("moto_endpoint")
        yield fresh_on_http(kind, {**ENDPOINT_ENV, "AWS_ENDPOINT_URL": endpoint}, aws_env)
    else:
        with FaultS3() as server:
            environ = {**ENDPOINT_ENV, "AWS_ENDPOINT_URL": server.address}
            yield fresh_on_http(kind, environ, aws_env, server)


@pytest.fixture
def store(fresh: Fresh) -> ObjectStore:
    return fresh.open()


@asked_of_all()
def test_what_is_put_is_read(store: ObjectStore) -> None:
    store.put("a/b.json", b"one")
    assert store.get("a/b.json") == store.find("a/b.json") == b"one"
    store.put("a/b.json", b"another")
    assert store.get("a/b.json") == b"another"
    store.put("empty", b"")
    assert store.get("empty") == b""


@asked_of_all()
def test_the_buffer_that_was_put_is_the_callers_again(store: ObjectStore) -> None:
    buffer = bytearray(b"one")
    store.put("k", memoryview(buffer))
    buffer[:] = b"two"
    assert store.get("k") == b"one"


@asked_of_all()
def test_create_never_overwrites(store: ObjectStore) -> None:
    assert store.create("k", b"first") == b"first"
    assert store.create("k", b"second") == b"first"
    assert store.get("k") == b"first"


@asked_of_all()
def test_of_16_writers_of_one_key_one_wins_and_15_use_its_bytes(store: ObjectStore) -> None:
    own = [b"%d" % writer for writer in range(16)]
    used = together(16, lambda writer: store.create("k", own[writer]))
    assert set(used) == {store.get("k")}
    assert sum(mine == standing for mine, standing in zip(own, used, strict=True)) == 1


@asked_of_all()
def test_an_absent_object_is_named_by_its_address(store: ObjectStore) -> None:
    assert store.find("a/none") is None
    with pytest.raises(AbsentObject, match="a/none: no such object"):
        store.get("a/none")
    with pytest.raises(AbsentObject, match="a/none: no such object"):
        store.read_range("a/none", 0, 1)


@asked_of_all(
    but={
        "memory": "it knows no identities",
        "file": "the rights of a folder don't hold for root, as whom containers and build machines run tests",
        "moto": "it checks rights for a whole server or not at all, and this one serves other tests",
    }
)
def test_a_denied_object_is_not_taken_for_an_absent_one(fresh: Fresh, aws_env: pytest.MonkeyPatch) -> None:
    fresh.open().put("closed/k", DATA)
    if fresh.server is None:
        _become_reader_of("open/", fresh, aws_env)
    else:
        fresh.server.faults += [
            Fault("GET", "closed/k", DENIED, times=9),
            Fault("PUT", "closed/k", DENIED, times=9),
            Fault("GET", "", DENIED, times=9),
        ]
    store = fresh.open()
    assert store.find("open/none") is None
    with pytest.raises(AccessDenied, match="GET .*closed/k was denied: .*s3:GetObject"):
        store.find("closed/k")
    with pytest.raises(AccessDenied, match="GET .*closed/k was denied"):
        store.read_range("closed/k", 0, 1)
    for write in (store.put, store.create):
        with pytest.raises(AccessDenied, match="PUT .*closed/k was denied: .*s3:PutObject"):
            write("closed/k", b"x")
    for listing in (store.names, store.keys):
        with pytest.raises(AccessDenied, match="LIST .*closed was denied: .*s3:ListBucket"):
            listing("closed")


def _become_reader_of(prefix: str, fresh: Fresh, patch: pytest.MonkeyPatch) -> None:
    """Take a role that may read, and learn of absence, below `prefix` alone."""
    bucket = "arn:aws:s3:::" + fresh.uri.removeprefix("s3://")
    statements = [
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{bucket}/{prefix}*"},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": f"{prefix}*"}},
        },
    ]
    trust = {
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"},
        "Action": "sts:AssumeRole",
    }
    iam, name = fresh.client("iam"), "reader"
    policy = {"Version": "2012-10-17", "Statement": [trust]}
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(policy))["Role"]["Arn"]
    iam.put_role_policy(
        RoleName=name,
        PolicyName="read",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": statements}),
    )
    keys = fresh.client("sts").assume_role(RoleArn=arn, RoleSessionName="tests")["Credentials"]
    patch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
    patch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
    patch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])


@asked_of_all()
@pytest.mark.parametrize(("offset", "size"), [(0, 1), (0, 100), (500, 24), (1000, 24), (1023, 1), (0, 1024)])
def test_a_range_is_those_bytes(store: ObjectStore, offset: int, size: int) -> None:
    store.put("k", DATA)
    assert store.read_range("k", offset, size) == DATA[offset : offset + size]


@asked_of_all()
@pytest.mark.parametrize("offset", [1020, 1024, 5000])
def test_a_range_past_the_end_is_damage(store: ObjectStore, offset: int) -> None:
    store.put("k", DATA)
    with pytest.raises(DamagedObject, match="k ends at byte 1024, but its manifest needs .*truncated"):
        store.read_range("k", offset, 10)


@asked_of_all()
def test_what_is_put_is_listed_by_whole_segments(store: ObjectStore) -> None:
    for key in ("a/b.json", "a/c/d.json", "a/c/e.json", "ab/f.json", "a.json"):
        store.put(key, b"x")
        assert key in store.keys("")
    assert store.names("a") == ["b.json", "c"]
    assert store.keys("a") == ["a/b.json", "a/c/d.json", "a/c/e.json"]
    assert store.names("nothing") == store.keys("nothing") == []


@asked_of_all()
def test_more_keys_than_a_page_of_s3s_are_listed_whole(store: ObjectStore) -> None:
    names = [f"{number:04d}" for number in range(1005)]
    together(16, lambda part: [store.put(f"p/{name}", b"") for name in names[part::16]])
    store.put("p/folder/k", b"")
    assert store.names("p") == [*names, "folder"]
    assert store.keys("p") == [*(f"p/{name}" for name in names), "p/folder/k"]


@asked_of_all()
@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 5])
def test_an_object_of_several_parts_arrives_whole(store: ObjectStore, size: int) -> None:
    data = os.urandom(size)
    store.put("large", memoryview(data))
    assert store.get("large") == data
    assert store.read_range("large", PART_BYTES - 5, 5) == data[PART_BYTES - 5 : PART_BYTES]


@asked_of_all()
def test_a_stream_of_pieces_arrives_whole(store: ObjectStore) -> None:
    pieces = [bytes([n]) * (PART_BYTES // 3) for n in range(7)]
    store.put_stream("large", pieces, 7 * (PART_BYTES // 3))
    assert store.get("large") == b"".join(pieces)


@asked_of_all()
def test_a_stream_that_fails_midway_leaves_nothing(fresh: Fresh, store: ObjectStore) -> None:
    def failing() -> Iterator[bytes]:
        yield from [bytes(PART_BYTES)] * 2
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        store.put_stream("large", failing(), 4 * PART_BYTES)
    assert store.keys("") == []
    assert store.find("large") is None
    if fresh.environ:
        assert fresh.unfinished_uploads() == []


# Ends as if by SIGKILL, parts on their way or arrived.
_DIES_MIDWAY = """
import os, sys
from trainer.rendezvous.object_store import PART_BYTES, open_store

def pieces():
    for _ in range(4):
        yield bytes(PART_BYTES)
    os._exit(7)

open_store(sys.argv[1]).put_stream("large", pieces(), 9 * PART_BYTES)
"""


@asked_of_all(but={"memory": "it dies with its only process"})
def test_a_writer_killed_midway_leaves_no_object(fresh: Fresh, store: ObjectStore) -> None:
    """What is left is an unfinished upload, which the bucket's lifecycle rule ends."""
    argv = [sys.executable, "-c", _DIES_MIDWAY, fresh.uri]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **fresh.environ}
    assert subprocess.run(argv, env=environ, check=False).returncode == 7
    assert store.keys("") == []
    assert store.find("large") is None
    if fresh.environ:
        assert fresh.unfinished_uploads() == ["large"]
    store.put("large", b"by the next process")
    assert store.get("large") == b"by the next process"
