"""The deployed stacks as their users meet them: programs in processes of their own, clients over HTTP."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from local_aws import faults
from local_aws.settings import Settings
from tests.support.embedded_client import embedded_client
from tests.support.waiting import wait_until
from trainer.layout import RunLayout, job_hash

ROOT: Final = Path(__file__).parents[2]
CDK_CLI: Final = ROOT / "node_modules/.bin/cdk"
LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"

# A run whose processes spend their time on imports, and no more than that. By its seed it always ends
# with the same weights.
TOY: Final = {
    "trainer_module": "tests.support.trainers",
    "trainer_fn": "toy",
    "seed": 7,
    "poll_interval_s": 0.05,
}


class Deployed:
    """One deployment on one embedded AWS; `folder` takes what programs write."""

    wait_until = staticmethod(wait_until)

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            **settings.client_environment(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # cdk.json starts `python3`
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
            "NO_PROXY": "127.0.0.1",
            "COLUMNS": "200",
        }

    # Programs

    def program(self, *argv: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run to the end; the exit code is the caller's to judge."""
        return subprocess.run(
            list(map(str, argv)), cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=280
        )

    def runs(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        return self.program(sys.executable, "-m", "runs", *argv)

    def cdk(self, *argv: str | Path, cwd: Path = ROOT) -> str:
        """Run the CDK command line, which has to succeed; what it printed."""
        done = self.program(CDK_CLI, *argv, "--output", self.folder / "cdk.out", cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def deploy(self, *argv: str | Path, cwd: Path = ROOT) -> str:
        return self.cdk("deploy", "--all", "--require-approval", "never", *argv, cwd=cwd)

    def parameters(self, name: str, given: Any) -> Path:
        """A file of run parameters."""
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(given))
        return file

    # The account

    def client(self, service: str) -> Any:
        """The root's."""
        return embedded_client(self.environment, service)

    def stack(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        return found

    @cached_property
    def outputs(self) -> dict[str, str]:
        return {output["OutputKey"]: output["OutputValue"] for output in self.stack("diloco-runs")["Outputs"]}

    @property
    def machine(self) -> str:
        return self.outputs["StateMachineArn"]

    @property
    def bucket(self) -> str:
        return self.outputs["RunBucketName"]

    def definition(self) -> dict[str, Any]:
        """The state machine's, as it is deployed now."""
        described = self.client("stepfunctions").describe_state_machine(stateMachineArn=self.machine)
        found: dict[str, Any] = json.loads(described["definition"])
        return found

    @cached_property
    def machine_role(self) -> str:
        described = self.client("stepfunctions").describe_state_machine(stateMachineArn=self.machine)
        arn: str = described["roleArn"]
        return arn

    @cached_property
    def replica_role(self) -> str:
        return self.asked_for("RoleArn")

    def asked_for(self, field: str) -> str:
        """A text that the deployed state machine's request for a replica gives as it stands."""
        iteration = self.definition()["States"]["FanOut"]["ItemProcessor"]["States"]
        found = re.search(rf'"{field}": "([^"]+)"', iteration["TrainReplica"]["Arguments"])
        assert found is not None, f"no {field} in the request"
        return found[1]

    # Objects

    def keys(self, prefix: str) -> list[str]:
        pages = self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        data: bytes = self.client("s3").get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def put(self, key: str, data: bytes = b"") -> None:
        self.client("s3").put_object(Bucket=self.bucket, Key=key, Body=data)

    def claim(self, name: str, rank: int, number: int = 0) -> dict[str, Any]:
        """Process `number` that took up a rank of a run, once it has."""
        key = RunLayout(name).claim(rank, number)
        wait_until(lambda: self.keys(key), f"rank {rank} of {name} is taken up the {number + 1}. time")
        found: dict[str, Any] = json.loads(self.read(key))
        return found

    def bring(self, job: str, fault: str, **more: Any) -> None:
        """Have a fault happen to jobs whose names match a pattern (local_aws/faults.py)."""
        faults.add(self.settings.faults_file, faults.Fault(job, fault, **more))

    def happened(self, job: str, fault: str) -> int:
        """How often a fault has happened to jobs whose names begin so, as the server's log has it."""
        log = (Path(self.settings.state_dir) / "server.log").read_text(errors="replace")
        return len(re.findall(rf"job={re.escape(job)}\S* fault={fault} ", log))

    # Executions and their jobs

    def start(self, name: str, given: Any) -> str:
        """Start an execution, past the client and its checks; `given` may be JSON text already."""
        text = given if isinstance(given, str) else json.dumps(given)
        states = self.client("stepfunctions")
        arn: str = states.start_execution(stateMachineArn=self.machine, name=name, input=text)["executionArn"]
        return arn

    def ended(self, arn: str) -> dict[str, Any]:
        """DescribeExecution once it has ended."""
        states = self.client("stepfunctions")

        def look() -> dict[str, Any] | None:
            described: dict[str, Any] = states.describe_execution(executionArn=arn)
            return described if described["status"] != "RUNNING" else None

        return wait_until(look, f"execution {arn} ends")

    def execute(self, name: str, given: Any) -> dict[str, Any]:
        return self.ended(self.start(name, given))

    def states_entered(self, arn: str) -> list[str]:
        """Names of the states that an execution went through, those inside Maps too."""
        pages = self.client("stepfunctions").get_paginator("get_execution_history").paginate(executionArn=arn)
        events = [event for page in pages for event in page["events"]]
        return [event["stateEnteredEventDetails"]["name"] for event in events if "Entered" in event["type"]]

    def jobs(self, arn: str) -> dict[str, dict[str, Any]]:
        """DescribeTrainingJob of every job of an execution, by how its name ends, `r0-a0` first."""
        sagemaker = self.client("sagemaker")
        pages = sagemaker.get_paginator("list_training_jobs").paginate(NameContains=job_hash(arn))
        names = sorted(job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"])
        return {
            "-".join(name.split("-")[-2:]): sagemaker.describe_training_job(TrainingJobName=name)
            for name in names
        }

    def job_statuses(self, arn: str) -> dict[str, str]:
        """The jobs' statuses, once none of them is ending."""

        def statuses() -> dict[str, str]:
            return {name: job["TrainingJobStatus"] for name, job in self.jobs(arn).items()}

        wait_until(lambda: "Stopping" not in statuses().values(), f"the jobs of {arn} end")
        return statuses()

    def job_log(self, job_name: str) -> list[str]:
        """The lines of a job in CloudWatch; none where it has no log stream."""
        logs = self.client("logs")
        streams = logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job_name}/")
        pages = logs.get_paginator("filter_log_events")
        names = [stream["logStreamName"] for stream in streams["logStreams"]]
        if not names:
            return []
        found = pages.paginate(logGroupName=LOG_GROUP, logStreamNames=names)
        return [event["message"] for page in found for event in page["events"]]

    # Rights

    @contextmanager
    def without(self, role_arn: str, action: str, on: str = "") -> Iterator[None]:
        """The role without one action, on the resources whose ARN contains `on` where that is given."""
        iam, role = self.client("iam"), role_arn.rsplit("/", 1)[-1]
        names = iam.list_role_policies(RoleName=role)["PolicyNames"]
        whole = {
            name: iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in names
        }
        cut = {name: _cut(document, action, on) for name, document in whole.items()}
        assert cut != whole, f"{role} has no {action} on {on or 'anything'} to take away"
        try:
            for name, document in cut.items():
                iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))
            yield
        finally:
            for name, document in whole.items():
                iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))


def _cut(document: dict[str, Any], action: str, on: str) -> dict[str, Any]:
    statements = [part for whole in document["Statement"] for part in _cut_statement(whole, action, on)]
    return {**document, "Statement": statements}


def _cut_statement(statement: dict[str, Any], action: str, on: str) -> list[dict[str, Any]]:
    actions, resources = _list(statement["Action"]), _list(statement["Resource"])
    kept = [resource for resource in resources if on not in resource]
    if action not in actions or kept == resources:
        return [statement]
    others = [one for one in actions if one != action]
    parts = [{**statement, "Action": others}] if others else []
    return parts + ([{**statement, "Action": action, "Resource": kept}] if kept else [])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
