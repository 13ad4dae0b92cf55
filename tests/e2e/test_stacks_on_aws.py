"""What has never run on AWS, tried there: AWS_SMOKE=1 .venv/bin/python -m pytest -s THIS_FILE

Deploys a sandbox of its own (stacks named diloco-smoke-...), looks at what only a real account can show,
removes everything. It says what that costs, and asks first; AWS_SMOKE_YES=1 answers for machines. The
table in docs/operations.md names these checks.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PREFIX = "diloco-smoke"
POLL_S = 10.0  # what an account lets be asked
SANDBOX = ["-c", f"prefix={PREFIX}", "-c", "sandbox=true", "-c", "log_retention_days=7"]
COST = """
This deploys three stacks to account {account}, region {region}, and starts four ml.m5.xlarge training jobs:
  jobs       4 x 8 minutes x $0.23 an hour    $0.12
  image      10 minutes of CodeBuild          $0.10
  all else   requests, logs, an alarm         $0.05
about $0.30 and half an hour, then everything is removed again. Type `spend` to go on: """

pytestmark = [
    pytest.mark.skipif(os.environ.get("AWS_SMOKE") != "1", reason="AWS_SMOKE=1 lets this spend money"),
    pytest.mark.timeout(7200),
]


def _consent() -> None:
    session = boto3.Session()
    account = session.client("sts").get_caller_identity()["Account"]
    said = COST.format(account=account, region=session.region_name)
    if os.environ.get("AWS_SMOKE_YES") == "1":
        print(said)
        return
    with Path("/dev/tty").open("r+") as terminal:  # pytest holds standard input
        terminal.write(said)
        terminal.flush()
        if terminal.readline().strip() != "spend":
            pytest.skip("not agreed to")


def _cdk(*arguments: str) -> None:
    app = ["--app", f"{sys.executable} app.py"]
    subprocess.run([str(ROOT / "node_modules/.bin/cdk"), *arguments, *SANDBOX, *app], cwd=ROOT, check=True)


class Account:
    """The deployment's outputs, and executions by short calls."""

    def __init__(self) -> None:
        cloudformation = boto3.client("cloudformation")
        (stack,) = cloudformation.describe_stacks(StackName=f"{PREFIX}-runs")["Stacks"]
        outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        self.machine, self.bucket = outputs["StateMachineArn"], outputs["RunBucketName"]
        self.states: Any = boto3.client("stepfunctions")

    def start(self, name: str, parameters: dict[str, Any]) -> str:
        return str(
            self.states.start_execution(
                stateMachineArn=self.machine, name=name, input=json.dumps(parameters)
            )["executionArn"]
        )

    def end(self, execution: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            found: dict[str, Any] = self.states.describe_execution(executionArn=execution)
            return found if found["status"] != "RUNNING" else None

        end: dict[str, Any] = wait_until(ended, f"{execution} ends", within_s=3600, every_s=POLL_S)
        return end


@pytest.fixture(scope="module")
def account() -> Iterator[Account]:
    _consent()
    try:
        _cdk("bootstrap")
        _cdk("deploy", "--all", "--require-approval", "never")
        yield Account()
    finally:
        _cdk("destroy", "--all", "--force")
        with pytest.raises(ClientError, match="does not exist"):
            boto3.client("cloudformation").describe_stacks(StackName=f"{PREFIX}-storage")


@pytest.fixture(scope="module")
def smoke(account: Account) -> tuple[str, dict[str, Any]]:
    name = f"smoke-{int(time.time())}"
    return name, account.end(account.start(name, {}))


def test_deploys_and_nothing_differs(account: Account) -> None:
    _cdk("diff", "--all", "--fail")


def test_a_smoke_run_succeeds(account: Account, smoke: tuple[str, dict[str, Any]]) -> None:
    _, end = smoke
    assert end["status"] == "SUCCEEDED", end
    summary = json.loads(end["output"])
    assert summary["billable_s"] > 0
    assert {replica["weights_hash"] for replica in summary["replicas"]} == {summary["weights_hash"]}


def test_a_taken_name_is_refused(account: Account, smoke: tuple[str, dict[str, Any]]) -> None:
    name, _ = smoke
    key = f"diloco-rdv/{name}.x-1/run.json"  # where the cleaned name below leads
    boto3.client("s3").put_object(Bucket=account.bucket, Key=key, Body=b"{}", IfNoneMatch="*")
    assert account.end(account.start(f"{name}.x@1", {}))["error"] == "RunNameTaken"


def test_quotas_are_read(account: Account) -> None:
    """No account may have forty of these from the beginning."""
    name = f"quota-{int(time.time())}"
    end = account.end(account.start(name, {"n_replicas": 40, "instance_type": "ml.p4de.24xlarge"}))
    assert end["error"] == "QuotaTooSmall", end


def test_the_log_is_write_once(account: Account) -> None:
    s3, entry = boto3.client("s3"), {"Bucket": account.bucket, "Key": "diloco-rdv/by-hand/log/x.json"}
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.put_object(**entry, Body=b"x")
    s3.put_object(**entry, Body=b"x", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(**entry, Body=b"y", IfNoneMatch="*")


def test_a_refused_job_is_told(account: Account) -> None:
    name = f"refused-{int(time.time())}"
    end = account.end(account.start(name, {"n_replicas": 1, "instance_type": "ml.m5.nosuchsize"}))
    assert end["error"] == "ReplicaFailed"
    assert "refused" in end["cause"], end


def test_logs_and_traces_arrive(account: Account, smoke: tuple[str, dict[str, Any]]) -> None:
    logs = boto3.client("logs")
    group = f"/aws/vendedlogs/states/{PREFIX}-runs"
    wait_until(
        lambda: logs.describe_log_streams(logGroupName=group)["logStreams"],
        "lines of the execution",
        within_s=600,
        every_s=POLL_S,
    )
    xray, now = boto3.client("xray"), time.time()
    wait_until(
        lambda: xray.get_trace_summaries(StartTime=now - 3600, EndTime=time.time())["TraceSummaries"],
        "a trace",
        within_s=600,
        every_s=POLL_S,
    )


def test_metrics_arrive(account: Account, smoke: tuple[str, dict[str, Any]]) -> None:
    cloudwatch = boto3.client("cloudwatch")
    wanted = {"Namespace": "/aws/sagemaker/TrainingJobs", "MetricName": "train_loss"}
    found = wait_until(
        lambda: cloudwatch.list_metrics(**wanted)["Metrics"], "train_loss", within_s=900, every_s=POLL_S
    )
    # What the dashboard's searches and the alarms' queries go by.
    assert "TrainingJobName" in {dimension["Name"] for metric in found for dimension in metric["Dimensions"]}


def test_stopping_stops_jobs(account: Account) -> None:
    name = f"stopped-{int(time.time())}"
    execution, sagemaker = account.start(name, {"total_steps": 1_000_000}), boto3.client("sagemaker")

    def statuses() -> list[str]:
        jobs = sagemaker.list_training_jobs(NameContains=name)["TrainingJobSummaries"]
        return [job["TrainingJobStatus"] for job in jobs]

    wait_until(lambda: len(statuses()) == 2, "two jobs", within_s=300, every_s=POLL_S)
    account.states.stop_execution(executionArn=execution)
    wait_until(lambda: set(statuses()) == {"Stopped"}, "both jobs stopped", within_s=900, every_s=POLL_S)
