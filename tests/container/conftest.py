"""The image, built once; an S3 in a network that has nothing else. `make test-container` runs these.

Not part of `make test`: they need root, buildah and podman. Where those are missing they fail.
"""

import logging
import os
import time
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from local_aws.endpoint_network import EndpointNetwork
from tests.container import engine, images
from tests.container.replica import Bucket

_summary: list[str] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    lacking = engine.missing()
    if lacking:
        pytest.exit(f"make test-container: {lacking}", returncode=1)
    os.environ.update(engine.environ())
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    # What a session that was killed has left: the storage is these tests' own.
    engine.podman("rm", "--all", "--force")


@pytest.fixture(scope="session")
def base() -> str:
    return images.base()


@pytest.fixture(scope="session")
def image(base: str) -> str:
    """The trainer's image."""
    began = time.monotonic()
    name = images.trainer()
    _summary.append(f"image built in {time.monotonic() - began:.0f} s")
    return name


@pytest.fixture(scope="session")
def summary() -> list[str]:
    """Words for the last line that is printed."""
    return _summary


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    """A bucket on an S3 server, and the network from which nothing but that server is reached."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line a request otherwise
    _, port = server.get_host_and_port()
    found = Bucket(f"http://127.0.0.1:{port}", "image-tests", f"ns:{EndpointNetwork(port).path}")
    os.environ.update(found.environ())
    boto3.client("s3").create_bucket(Bucket=found.name)
    yield found
    server.stop()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line says what ran."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and _summary:
        counts = {word: len(reporter.stats.get(word, [])) for word in ("passed", "failed", "error")}
        shown = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        print(f"container: {shown}; {'; '.join(_summary)}")
