"""What several test files need: stores of each kind, one torch thread."""

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import torch
from moto.server import ThreadedMotoServer

from trainer.rendezvous.object_store import ObjectStore, open_store

# One thread each: ranks run side by side in one process here, and bits must not depend on cores.
torch.set_num_threads(1)

ENDPOINT_ENV = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests of the image need root and container tools: they run where they are named."""
    named = any("tests/container" in argument for argument in config.args)
    return True if collection_path == Path(__file__).parent / "container" and not named else None


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """A real S3 API over HTTP, for the whole session."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws_env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Dummy credentials and no trace of this machine's own AWS configuration."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in ENDPOINT_ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    return monkeypatch


@pytest.fixture
def s3_bucket(moto_endpoint: str, aws_env: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty bucket's URI, the environment pointing at its endpoint."""
    aws_env.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.fixture(params=["memory", "file", "s3"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A store of each kind."""
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_bucket"))
    return open_store("memory://" if request.param == "memory" else tmp_path.as_uri())


@pytest.fixture
def store() -> ObjectStore:
    """A store in memory, for tests that aren't about stores."""
    return open_store("memory://")
