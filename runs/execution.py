"""A run as an execution of the state machine: start it, look at it, gather what it left."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from runs.deployment import CannotTell, Deployment
from trainer.layout import RunLayout, job_hash
from trainer.progress_view import ReplicaView
from trainer.report import ABORTED, FAILED, Report, build_report

_ATTEMPT: Final = re.compile(r"-r(\d+)-a(\d+)$")  # how the name of a training job ends
# What Step Functions says of an execution's end, in the report's words.
ENDED: Final = {"SUCCEEDED": "SUCCEEDED", "FAILED": FAILED, "TIMED_OUT": FAILED, "ABORTED": ABORTED}


class NameTaken(Exception):
    """The state machine has had an execution of this name with other parameters."""


@dataclass(frozen=True)
class Execution:
    """One run. Its name is the run's id."""

    deployment: Deployment
    arn: str
    n_replicas: int

    @classmethod
    def start(
        cls, deployment: Deployment, name: str, parameters: dict[str, Any], n_replicas: int
    ) -> "Execution":
        """Start a run. Raises NameTaken, CannotTell."""
        try:
            started = deployment.client("stepfunctions").start_execution(
                stateMachineArn=deployment.state_machine_arn, name=name, input=json.dumps(parameters)
            )
        except ClientError as error:
            if error.response["Error"]["Code"] == "ExecutionAlreadyExists":
                raise NameTaken(f"there has been a run {name}; choose another name") from error
            raise CannotTell(f"starting run {name}: {error}") from error
        except BotoCoreError as error:
            raise CannotTell(f"starting run {name}: {error}") from error
        return cls(deployment, started["executionArn"], n_replicas)

    @property
    def keys(self) -> RunLayout:
        return RunLayout(self.arn.rsplit(":", 1)[-1])

    def describe(self) -> dict[str, Any]:
        """As Step Functions describes it. Raises CannotTell."""
        try:
            described: dict[str, Any] = self.deployment.client("stepfunctions").describe_execution(
                executionArn=self.arn
            )
        except (ClientError, BotoCoreError) as error:
            raise CannotTell(f"asking for execution {self.arn}: {error}") from error
        return described

    def views(self) -> list[ReplicaView]:
        """What each replica is at."""
        jobs = self.jobs()
        return [
            ReplicaView(
                rank, jobs.get(rank, {}).get("status", "no job yet"), self._json(self.keys.progress(rank))
            )
            for rank in range(self.n_replicas)
        ]

    def jobs(self) -> dict[int, dict[str, Any]]:
        """The newest training job of each rank: job_name, status, attempts."""
        newest: dict[int, dict[str, Any]] = {}
        try:
            pages = self.deployment.client("sagemaker").get_paginator("list_training_jobs")
            for page in pages.paginate(NameContains=job_hash(self.arn)):
                for job in page["TrainingJobSummaries"]:
                    name = job["TrainingJobName"]
                    match = _ATTEMPT.search(name)
                    if match is None:
                        continue
                    rank, attempts = int(match[1]), int(match[2]) + 1
                    if attempts > newest.get(rank, {"attempts": 0})["attempts"]:
                        status = job["TrainingJobStatus"]
                        newest[rank] = {"job_name": name, "status": status, "attempts": attempts}
        except (ClientError, BotoCoreError) as error:
            raise CannotTell(f"listing the training jobs of {self.arn}: {error}") from error
        return newest

    def report(self, described: dict[str, Any]) -> Report:
        """The report of a run that has ended, from its execution, its jobs and the bucket."""
        jobs = self.jobs()
        ranks = range(self.n_replicas)
        nothing = {"job_name": None, "status": "NotStarted", "attempts": 0}
        rows = [{"rank": rank} | jobs.get(rank, nothing) for rank in ranks]
        results = {rank: found for rank in ranks if (found := self._json(self.keys.result(rank))) is not None}
        model_uri = f"s3://{self.deployment.bucket}/{self.keys.model_prefix}"
        report = build_report(self.keys.run_id, rows, results, model_uri=model_uri)
        report["execution_arn"] = self.arn
        status = ENDED[described["status"]]
        if status != "SUCCEEDED":  # the state machine's word is the run's
            error, cause = (
                described.get("error", described["status"]),
                described.get("cause", "no cause given"),
            )
            report |= {"status": status, "error": error, "cause": cause}
        return report

    def metrics(self) -> dict[int, list[dict[str, Any]]]:
        """Each rank's JSON lines, a round each."""
        found = {rank: self._get(self.keys.metrics(rank)) or b"" for rank in range(self.n_replicas)}
        return {rank: [json.loads(line) for line in lines.splitlines()] for rank, lines in found.items()}

    def _json(self, key: str) -> dict[str, Any] | None:
        data = self._get(key)
        return None if data is None else json.loads(data)

    def _get(self, key: str) -> bytes | None:
        s3 = self.deployment.client("s3")
        try:
            data: bytes = s3.get_object(Bucket=self.deployment.bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise CannotTell(f"reading s3://{self.deployment.bucket}/{key}: {error}") from error
        except BotoCoreError as error:
            raise CannotTell(f"reading s3://{self.deployment.bucket}/{key}: {error}") from error
        return data
