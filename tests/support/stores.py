"""One store of each kind, for the suite of what every store promises.

A test asks for `fresh` and is run on every kind; `asked_of_all(but={...})` leaves kinds out, each with
the reason why the promise can't be asked of it.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from obstore.store import S3Store

from tests.support.fault_s3 import FaultS3
from trainer.rendezvous.object_store import ObjectStore, open_store

HTTP = ("moto", "ministack", "fault_s3")
KINDS = ("memory", "file", *HTTP)

_numbers = itertools.count()
_MOMENT = timedelta(milliseconds=2)


def asked_of_all(but: Mapping[str, str] | None = None) -> pytest.MarkDecorator:
    """Run the test on all kinds but those named, each with the reason for leaving it out."""
    left_out = but or {}
    assert set(left_out) <= set(KINDS) and all(left_out.values()), left_out
    return pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in left_out])


@dataclass(frozen=True)
class Fresh:
    """An empty store of one kind; `environ` is what another process needs to open `uri`, too."""

    kind: str
    uri: str
    environ: Mapping[str, str]
    server: FaultS3 | None = None

    def open(self) -> ObjectStore:
        return open_store(self.uri)

    def client(self, service: str = "s3") -> Any:
        """The owner's own client of an HTTP kind."""
        make: Any = boto3.client
        return make(
            service,
            endpoint_url=self.environ["AWS_ENDPOINT_URL"],
            aws_access_key_id=self.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environ["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )

    def unfinished_uploads(self) -> list[str]:
        """The keys of multipart uploads that were neither completed nor aborted."""
        found = self.client().list_multipart_uploads(Bucket=self.uri.removeprefix("s3://"))
        return [upload["Key"] for upload in found.get("Uploads", [])]


def fresh_on_http(
    kind: str, environ: Mapping[str, str], patch: pytest.MonkeyPatch, server: FaultS3 | None = None
) -> Fresh:
    """A new bucket of the endpoint in `environ`, which becomes this process's environment."""
    for name, value in environ.items():
        patch.setenv(name, value)
    made = Fresh(kind, f"s3://conformance-{next(_numbers)}", environ, server)
    if server is None:  # the fault server has whatever bucket it is asked for
        made.client().create_bucket(Bucket=made.uri.removeprefix("s3://"))
    return made


def fresh_on_disk(folder: Path) -> Fresh:
    return Fresh("file", folder.as_uri(), {})


def on_fault_server(server: FaultS3, *, retry_s: float = 3.0, retries: int = 0) -> ObjectStore:
    """A store none of whose own pauses takes time; without `retries` of obstore's it shows every fault."""
    waited = [0.0]

    def sleep(seconds: float) -> None:
        waited[0] += seconds

    s3 = S3Store(
        "bucket",
        endpoint=server.address,
        region="us-east-1",
        access_key_id="x",
        secret_access_key="x",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "30s"},
        retry_config={
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=60),
            "backoff": {"init_backoff": _MOMENT, "max_backoff": 5 * _MOMENT, "base": 2},
        },
    )
    return ObjectStore(s3, "s3://bucket", retry_s=retry_s, now=lambda: waited[0], sleep=sleep)
