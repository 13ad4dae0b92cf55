"""How a store is opened and in what parts it puts; what every store promises: test_store_conformance.py."""

from pathlib import Path

import pytest

from trainer.rendezvous.errors import AbsentObject, AccessDenied
from trainer.rendezvous.object_store import MOST_PARTS, PART_BYTES, open_store, part_bytes

MIB, GIB, TIB = 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    "size", [1, PART_BYTES, 5 * GIB, MOST_PARTS * PART_BYTES, MOST_PARTS * PART_BYTES + 1, TIB, 5 * TIB - 1]
)
def test_parts_are_such_as_s3_takes(size: int) -> None:
    """S3 multipart limits: 10,000 parts, each from 5 MiB (but the last) to 5 GiB. On paper: no bytes move."""
    part = part_bytes(size)
    assert 5 * MIB <= part <= 5 * GIB
    assert -(-size // part) <= 10_000


def test_parts_stay_small_as_long_as_they_can() -> None:
    """A part is what is held in memory and sent again after a fault."""
    assert part_bytes(MOST_PARTS * PART_BYTES) == PART_BYTES
    assert part_bytes(MOST_PARTS * PART_BYTES + 1) == PART_BYTES + 1


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
