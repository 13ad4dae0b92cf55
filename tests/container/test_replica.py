"""A replica in the built image, run as SageMaker runs it: what goes in, and how it ends.

Entry point and arguments override the image's, a folder stands for /opt/ml, and the network has the S3
endpoint and nothing else.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container.engine import ROOT, environ
from tests.container.replica import Bucket, Container
from trainer.layout import RunLayout
from trainer.run_file import Run

Start = Callable[..., Container]


@pytest.fixture
def start(image: str, bucket: Bucket, tmp_path: Path) -> Iterator[Start]:
    """Starts one rank of a run, or whatever `arguments` say; removes what a failed test left."""
    started: list[Container] = []

    def start(run: Run | None = None, rank: int = 0, **given: Any) -> Container:
        ml = tmp_path / f"rank{rank}"
        for name in ("input/config", "input/data", "model", "output/data"):
            (ml / name).mkdir(parents=True)
        owner = given.pop("owner", 0)
        for path in (ml, *ml.rglob("*")):
            os.chown(path, owner, owner)
        arguments = given.pop("arguments", ["--run", run.uri, "--rank", str(rank)] if run else [])
        started.append(Container(image, bucket, ml, arguments, **given))
        return started[-1]

    yield start
    for container in started:
        container.remove()


def result(run: Run, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.store.get(RunLayout(run.run_id).result(rank)))
    return found


def outside(tmp_path: Path, **parameters: Any) -> dict[str, Any]:
    """The report of the same run as plain processes of this machine."""
    (tmp_path / "p.json").write_text(json.dumps(parameters))
    subprocess.run(
        [
            *(sys.executable, "-m", "trainer.local", str(tmp_path / "p.json"), "--run-id", "outside"),
            *("--store", (tmp_path / "store").as_uri(), "--out", str(tmp_path / "out")),
        ],
        cwd=ROOT,
        env=environ(),
        capture_output=True,
        check=True,
    )
    report: dict[str, Any] = json.loads((tmp_path / "out" / "outside" / "report.json").read_text())
    return report


def test_two_replicas_end_with_the_weights_of_the_same_run_outside(
    start: Start, bucket: Bucket, tmp_path: Path, summary: list[str]
) -> None:
    """Read-only root: a replica writes below /opt/ml and, as torch does on import, to /tmp.

    Rank 0 is root, as in SageMaker; rank 1 a user without rights and without a name, as elsewhere.
    """
    run = bucket.run("pair")
    read_only = ["--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp"]
    ranks = [
        start(run, 0, options=read_only),
        start(run, 1, options=[*read_only, "--user", "1234:1234", "--cap-drop", "all"], owner=1234),
    ]
    for container in ranks:
        code, output = container.end()
        assert code == 0, output
    hashes = [result(run, rank)["weights_hash"] for rank in range(2)]
    hashes += [replica["weights_hash"] for replica in outside(tmp_path)["replicas"]]
    assert len(hashes) == 4 and len(set(hashes)) == 1
    assert (tmp_path / "rank1" / "model" / "model.safetensors").is_file()
    summary.append(f"two replicas {hashes[0][:12]} inside and outside")


def test_sigterm_reaches_python_as_pid_1(start: Start, bucket: Bucket) -> None:
    """StopTrainingJob: SIGTERM, 120 s, SIGKILL. This replica waits for a peer that never comes."""
    run = bucket.run("stopped")
    container = start(run)
    container.until(
        lambda: run.store.find(RunLayout("stopped").contribution(0, 0)) is not None, "its contribution"
    )
    began = time.monotonic()
    subprocess.run(
        ["podman", "stop", "--time", "120", container.name], env=environ(), check=True, capture_output=True
    )
    code, output = container.end()
    assert code == 0, output
    assert time.monotonic() - began < 60
    assert container.failure() == "Stopped: rank 0: asked to stop, and did\n"
    assert json.loads(run.store.get(RunLayout("stopped").progress(0)))["state"] == "stopped"
    assert run.store.find(RunLayout("stopped").result(0)) is None


def test_failures_leave_their_reasons_and_exit_codes(start: Start, bucket: Bucket) -> None:
    """All at once: what takes time is importing torch."""
    absent = f"s3://{bucket.name}/diloco-rdv/never-started/run.json"
    expected = [
        (
            ["--run", absent, "--rank", "0"],
            18,
            f"AbsentObject: rank 0: {absent} does not exist: the run never",
        ),
        (
            [],
            10,
            "InvalidRunParameters: --run: is missing, and so is the environment's RUN_URI; --rank: must",
        ),
        (["--run", "s3://b/run.json", "--rank", "0"], 10, "InvalidRunParameters: rank 0: --run: must be the"),
        (["--unknown"], 10, "InvalidRunParameters: arguments: unrecognized arguments: --unknown"),
    ]
    started = [start(rank=rank, arguments=row[0]) for rank, row in enumerate(expected)]
    for container, (arguments, code, said) in zip(started, expected, strict=True):
        ended, output = container.end()
        assert ended == code, output
        assert container.failure().startswith(said), arguments


def test_the_network_has_the_endpoint_and_nothing_else(start: Start, bucket: Bucket) -> None:
    code = (
        "import socket, urllib.request, urllib.error\n"
        f"try: urllib.request.urlopen('{bucket.endpoint}')\n"
        "except urllib.error.HTTPError as error: print('endpoint', error.code)\n"
        "else: print('endpoint', 200)\n"
        "try: socket.create_connection(('192.0.2.1', 80), 5)\n"
        "except OSError as error: print(error.strerror)"
    )
    ended = start(entrypoint='["python", "-c"]', arguments=[code]).end()
    assert ended == (0, "endpoint 200\nNetwork is unreachable\n")
