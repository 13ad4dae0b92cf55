"""local_aws with `--runtime podman`: the behaviour of training jobs, the same tests, in the built image.

Two tests stay behind, since they speak of processes as this machine numbers and ends them. Theirs here:
PID 1 of a container is killed from outside only, and what it started ends with it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_aws import environment
from local_aws.supervisor import running
from tests.container.engine import ROOT, podman
from tests.local_aws.conftest import STOP_GRACE_S, Account, job_role, states_role  # noqa: F401
from tests.local_aws.test_training_job import *  # noqa: F403

del test_a_killed_job_names_the_signal  # noqa: F821
del test_a_job_that_ignores_sigterm_is_killed_after_the_grace_with_its_children  # noqa: F821


@pytest.fixture(scope="session")
def account(image: str, tmp_path_factory: pytest.TempPathFactory, summary: list[str]) -> Iterator[Account]:
    """As in tests/local_aws, with jobs in containers of the image."""
    state_dir = tmp_path_factory.mktemp("local_aws")
    with running(
        venv=environment.DEFAULT_VENV,
        state_dir=state_dir,
        stop_grace_s=STOP_GRACE_S,
        image=image,
    ) as server:
        yield Account(server.settings)
    summary.append("training jobs of the embedded AWS in containers")


def processes_inside(code: str) -> list[int]:
    """This machine's numbers of processes whose command line has `code`, in a namespace of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            status = (path / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended in this moment
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if code.encode() in command and len(numbers) > 1:
            found.append(int(path.name))
    return found


def test_a_killed_job_says_so(account: Any, job_role: str) -> None:  # noqa: F811
    name = account.start_job(account.job_request(job_role, "sleep", "611"))
    (pid,) = account.wait_until(lambda: processes_inside("611"), "the container runs")
    os.kill(pid, signal.SIGKILL)
    assert account.ended_job(name)["FailureReason"] == "AlgorithmError: , exit code: 137"


def test_a_job_that_ignores_sigterm_ends_with_its_children(account: Any, job_role: str) -> None:  # noqa: F811
    command = "trap '' TERM; sleep 612 & echo started; wait; sleep 612"
    name = account.start_job(account.job_request(job_role, "sh", "-c", command))
    account.wait_until(lambda: account.job_log(name) == ["started"], "the job's child is there")
    account.client("sagemaker").stop_training_job(TrainingJobName=name)
    assert account.ended_job(name)["TrainingJobStatus"] == "Stopped"
    assert processes_inside("612") == []


def test_a_job_sees_its_container_and_not_this_machine(account: Any, job_role: str) -> None:  # noqa: F811
    code = (
        "import json, pathlib, socket, trainer\n"
        "try: socket.create_connection(('192.0.2.1', 80), 5)\n"
        "except OSError as error: network = error.strerror\n"
        "print(json.dumps([os.getpid(), base, os.getcwd(), trainer.__file__, network]))"
    )
    job = account.run_job(account.python_job(job_role, code))
    (line,) = account.job_log(job["TrainingJobName"])
    assert json.loads(line) == [
        1, "/opt/ml", "/opt/app", "/opt/app/trainer/__init__.py", "Network is unreachable",
    ]  # fmt: skip


def test_no_container_is_left(account: Any, job_role: str) -> None:  # noqa: F811
    account.run_job(account.job_request(job_role, "true"))
    assert podman("ps", "--all", "--quiet", "--filter", "label=local_aws.job") == ""


def test_jobs_end_with_a_server_that_is_killed(image: str, tmp_path: Path) -> None:
    """Its guard knows PID 1 of each container."""
    with running(venv=environment.DEFAULT_VENV, state_dir=tmp_path, image=image) as server:
        account = Account(server.settings)
        role = account.job_role(account.allow("logs:*"))
        account.start_job(account.job_request(role, "sleep", "613"))
        account.wait_until(lambda: processes_inside("613"), "the container runs")
        server.process.kill()
        account.wait_until(lambda: not processes_inside("613"), "the container ends")


@pytest.mark.parametrize(("name", "code", "said"), [("", 7, ""), ("-gone", 1, "podman has no image")])
def test_the_command_line_takes_an_image(image: str, name: str, code: int, said: str) -> None:
    command = [sys.executable, "-m", "local_aws", "--runtime", "podman", "--image", f"{image}{name}"]
    done = subprocess.run(
        [*command, "--", "sh", "-c", "exit 7"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
