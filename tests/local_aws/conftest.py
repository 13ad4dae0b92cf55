"""One embedded AWS for all tests of this folder, real HTTP to it, and jobs of a few milliseconds."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_aws import environment
from local_aws.settings import ACCOUNT, REGION, Settings
from local_aws.supervisor import running
from tests.support.embedded_client import embedded_client
from tests.support.waiting import wait_until

# Short, so that a job which ignores SIGTERM is killed within a test; SageMaker waits 120 s.
STOP_GRACE_S = 0.5

JOB_TRUST = {
    "StringEquals": {"aws:SourceAccount": ACCOUNT},
    "ArnLike": {"aws:SourceArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/*"},
}

SYNC_RULE = {
    "Effect": "Allow",
    "Action": ["events:PutTargets", "events:PutRule", "events:DescribeRule"],
    "Resource": f"arn:aws:events:{REGION}:{ACCOUNT}:rule/StepFunctionsGetEventsForSageMakerTrainingJobsRule",
}


def allow(*actions: str, on: str = "*") -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": on}


class Account:
    """The embedded account as tests use it: root's clients, roles, jobs and executions by short calls."""

    allow = staticmethod(allow)
    wait_until = staticmethod(wait_until)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._numbers = itertools.count()
        self.bucket = "tests-of-local-aws"
        self.client("s3").create_bucket(Bucket=self.bucket)

    def unique(self, word: str) -> str:
        """A name that no other test uses: all share the account."""
        return f"{word}-{next(self._numbers)}"

    def client(self, service: str, credentials: dict[str, str] | None = None) -> Any:
        """The root's, or that of `credentials` as STS returns them."""
        return embedded_client(self.settings.client_environment(), service, credentials)

    def role(self, principal: dict[str, str], *statements: dict[str, Any], condition: Any = None) -> str:
        name = self.unique("role")
        trust = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
        if condition:
            trust["Condition"] = condition
        iam = self.client("iam")
        arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy(trust))["Role"]["Arn"]
        if statements:
            iam.put_role_policy(RoleName=name, PolicyName="tests", PolicyDocument=_policy(*statements))
        return arn

    def job_role(self, *statements: dict[str, Any], condition: Any = JOB_TRUST) -> str:
        return self.role({"Service": "sagemaker.amazonaws.com"}, *statements, condition=condition)

    def states_role(self, *statements: dict[str, Any]) -> str:
        return self.role({"Service": "states.amazonaws.com"}, SYNC_RULE, *statements)

    def assume(self, *statements: dict[str, Any]) -> dict[str, str]:
        """Credentials of a role with these statements, as a person or a program would have them."""
        arn = self.role({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, *statements)
        session = self.client("sts").assume_role(RoleArn=arn, RoleSessionName="tests")
        keys: dict[str, str] = session["Credentials"]
        return keys

    def job_request(self, role: str, *argv: str, **changes: Any) -> dict[str, Any]:
        """A CreateTrainingJob request that runs `argv`; `changes` replace its top-level members."""
        return {
            "TrainingJobName": self.unique("job"),
            "RoleArn": role,
            "AlgorithmSpecification": {
                "TrainingImage": "public.ecr.aws/docker/library/python:3.11-slim",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": list(argv[:1]),
                **({"ContainerArguments": list(argv[1:])} if argv[1:] else {}),
            },
            "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
            "OutputDataConfig": {"S3OutputPath": f"s3://{self.bucket}/out"},
            "StoppingCondition": {"MaxRuntimeInSeconds": 60},
            **changes,
        }

    def python_job(self, role: str, code: str, **changes: Any) -> dict[str, Any]:
        """A request that runs Python code of several lines, which no argument may have (pattern `.*`).

        `base` in it is the job's /opt/ml.
        """
        environment = {"CODE": code, **changes.pop("Environment", {})}
        run = "import os; base = os.environ.get('SAGEMAKER_BASE_DIR', '/opt/ml'); exec(os.environ['CODE'])"
        return self.job_request(role, "python", "-c", run, Environment=environment, **changes)

    def start_job(self, request: dict[str, Any]) -> str:
        self.client("sagemaker").create_training_job(**request)
        name: str = request["TrainingJobName"]
        return name

    def ended_job(self, name: str) -> dict[str, Any]:
        """DescribeTrainingJob once the job has ended."""
        sagemaker = self.client("sagemaker")

        def ended() -> dict[str, Any] | None:
            job: dict[str, Any] = sagemaker.describe_training_job(TrainingJobName=name)
            return job if job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped") else None

        return wait_until(ended, f"job {name} ends")

    def run_job(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.ended_job(self.start_job(request))

    @staticmethod
    def is_running(pid: int) -> bool:
        """Whether a process is there and no zombie, which an orphan may be until init reaps it."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def job_log(self, name: str) -> list[str]:
        """Every line of a job, those of a spot job's instances one after another."""
        logs, group = self.client("logs"), "/aws/sagemaker/TrainingJobs"
        if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
            return []  # the account's first job makes it
        streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{name}/")["logStreams"]
        return [
            event["message"]
            for name in sorted(stream["logStreamName"] for stream in streams)
            for event in logs.get_log_events(logGroupName=group, logStreamName=name)["events"]
        ]

    def machine(self, role: str, states: dict[str, Any]) -> str:
        """A JSONata state machine that starts at the first of `states`."""
        definition = {"QueryLanguage": "JSONata", "StartAt": next(iter(states)), "States": states}
        created = self.client("stepfunctions").create_state_machine(
            name=self.unique("machine"), definition=json.dumps(definition), roleArn=role
        )
        arn: str = created["stateMachineArn"]
        return arn

    def start_execution(self, machine: str, given: Any = None) -> str:
        arn: str = self.client("stepfunctions").start_execution(
            stateMachineArn=machine, input=json.dumps(given or {})
        )["executionArn"]
        return arn

    def ended_execution(self, arn: str) -> dict[str, Any]:
        states = self.client("stepfunctions")

        def ended() -> dict[str, Any] | None:
            execution: dict[str, Any] = states.describe_execution(executionArn=arn)
            return execution if execution["status"] != "RUNNING" else None

        return wait_until(ended, f"execution {arn} ends")

    def execute(self, machine: str, given: Any = None) -> dict[str, Any]:
        return self.ended_execution(self.start_execution(machine, given))


def _policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    state_dir = tmp_path_factory.mktemp("local_aws")  # pytest keeps it: server.log is in it
    with running(venv=environment.DEFAULT_VENV, state_dir=state_dir, stop_grace_s=STOP_GRACE_S) as server:
        yield Account(server.settings)


@pytest.fixture(scope="session")
def job_role(account: Account) -> str:
    """An execution role with what a job needs."""
    return account.job_role(
        allow("s3:PutObject", "s3:GetObject", "s3:ListBucket", on=f"arn:aws:s3:::{account.bucket}*"),
        allow("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"),
    )


@pytest.fixture(scope="session")
def states_role(account: Account, job_role: str) -> str:
    """A state machine's role with what `.sync` needs."""
    return account.states_role(
        allow(
            "sagemaker:CreateTrainingJob",
            "sagemaker:DescribeTrainingJob",
            "sagemaker:StopTrainingJob",
            "sagemaker:AddTags",
        ),
        {
            **allow("iam:PassRole", on=job_role),
            "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        },
        allow("s3:PutObject", "s3:GetObject", "s3:ListBucket", on=f"arn:aws:s3:::{account.bucket}*"),
    )
