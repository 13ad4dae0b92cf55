"""The stacks, deployed to an embedded AWS of one's own, for tests of what only a deployment shows."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from local_aws import environment
from local_aws.supervisor import running
from tests.support.embedded_client import embedded_client
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
CDK = ROOT / "node_modules" / ".bin" / "cdk"


class Stacks:
    """A deployment's outputs, and what tests ask of it by short calls."""

    def __init__(self, client_environment: dict[str, str], folder: Path) -> None:
        self.environment, self._folder = client_environment, folder
        self.machine = self.bucket = ""

    def client(self, service: str, credentials: dict[str, str] | None = None) -> Any:
        """The root's, or that of `credentials` as STS returns them."""
        return embedded_client(self.environment, service, credentials)

    def cdk(self, *arguments: str, ok: bool = True) -> str:
        """Run the CDK CLI on the app; what it said."""
        app = ["--app", f"{sys.executable} app.py", "--output", str(self._folder / "cdk.out")]
        done = subprocess.run(
            [str(CDK), *arguments, *app],
            cwd=ROOT,
            env={**os.environ, **self.environment, "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode == 0) is ok, said
        return said

    def deploy(self, *arguments: str, prefix: str = "diloco") -> None:
        outputs = self._folder / "outputs.json"
        self.cdk("deploy", "--all", "--require-approval", "never", "--outputs-file", str(outputs), *arguments)
        found = json.loads(outputs.read_text())[f"{prefix}-runs"]
        self.machine, self.bucket = found["StateMachineArn"], found["RunBucketName"]

    def start(self, name: str, parameters: Any) -> str:
        started = self.client("stepfunctions").start_execution(
            stateMachineArn=self.machine, name=name, input=json.dumps(parameters)
        )
        return str(started["executionArn"])

    def run(self, name: str, parameters: Any) -> dict[str, Any]:
        execution, states = self.start(name, parameters), self.client("stepfunctions")
        found: dict[str, Any] = {}

        def ended() -> bool:
            found.update(states.describe_execution(executionArn=execution))
            return found["status"] != "RUNNING"

        wait_until(ended, f"execution {name} ends")
        return found

    def jobs(self) -> list[str]:
        """Names of all training jobs there ever were."""
        pages = self.client("sagemaker").get_paginator("list_training_jobs").paginate()
        return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]

    def role_named(self, word: str) -> str:
        """The name of the one role whose name holds `word`."""
        pages = self.client("iam").get_paginator("list_roles").paginate()
        (name,) = [r["RoleName"] for page in pages for r in page["Roles"] if word in r["RoleName"]]
        return str(name)


@contextlib.contextmanager
def deployed(folder: Path, *arguments: str, quotas: dict[str, Any] | None = None) -> Iterator[Stacks]:
    """An embedded AWS with the stacks in it; `arguments` go to `cdk deploy`."""
    quotas_file = folder / "quotas.json"
    quotas_file.write_text(json.dumps(quotas or {}))
    with running(
        venv=environment.DEFAULT_VENV, state_dir=folder / "aws", stop_grace_s=1.0, quotas_file=quotas_file
    ) as server:
        stacks = Stacks(server.settings.client_environment(), folder)
        stacks.cdk("bootstrap")
        stacks.deploy(*arguments)
        yield stacks
