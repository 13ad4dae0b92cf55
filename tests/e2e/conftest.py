"""One embedded AWS and one deployment, by the real CDK command line, for all tests of this folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_aws import environment
from local_aws.supervisor import running
from tests.support.deployed import TOY, Deployed

# A job that is stopped has this long to leave; SageMaker's 120 s would be a test's whole time.
STOP_GRACE_S = 10.0
# The state machine pauses for minutes where SageMaker has no instance; here for a second or two.
WAIT_SCALE = 0.01


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Bootstrapped and deployed as the README says; pytest keeps the folder, server.log is in it."""
    folder = tmp_path_factory.mktemp("deployed")
    state_dir = folder / "local_aws"
    with running(
        venv=environment.DEFAULT_VENV,
        state_dir=state_dir,
        stop_grace_s=STOP_GRACE_S,
        wait_scale=WAIT_SCALE,
    ) as server:
        deployed = Deployed(server.settings, folder)
        deployed.cdk("bootstrap")
        deployed.deploy()
        yield deployed


@dataclass(frozen=True)
class FinishedRun:
    """A run that `python -m runs start FILE --name NAME --follow` has seen to its end."""

    name: str
    parameters: dict[str, Any]
    exit_code: int
    printed: str
    folder: Path
    report: dict[str, Any]

    @property
    def arn(self) -> str:
        arn: str = self.report["execution_arn"]
        return arn


def followed(deployed: Deployed, name: str, parameters: dict[str, Any]) -> FinishedRun:
    file, out = deployed.parameters(name, parameters), deployed.folder / "runs"
    done = deployed.runs("start", file, "--name", name, "--follow", "--out", out)
    printed = done.stdout + done.stderr
    report_file = out / name / "report.json"
    assert report_file.exists(), printed
    report = json.loads(report_file.read_text())
    return FinishedRun(name, parameters, done.returncode, printed, out / name, report)


@pytest.fixture(scope="session")
def toy_run(deployed: Deployed) -> FinishedRun:
    """A run of the toy, by the client."""
    return followed(deployed, "toy-1", TOY)


@pytest.fixture(scope="session")
def smoke_run(deployed: Deployed) -> FinishedRun:
    """The seed's smoke run, every parameter at its default: the real trainer on a real, tiny model."""
    return followed(deployed, "smoke-1", {})
