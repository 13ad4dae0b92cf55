"""SageMaker's training jobs: CreateTrainingJob, Describe, Stop, List, and the tags of jobs.

Requests are held against botocore's model (validation.py), then against what the model doesn't say
("CreateTrainingJob", SageMaker API reference), then against IAM and the quotas. What this host cannot do
(several instances, network isolation, Pipe mode) is refused rather than left out in silence.
"""

import threading
from collections.abc import Iterator
from typing import Any

from local_aws import faults, json_service, validation
from local_aws.host import Host
from local_aws.iam import Caller, CannotAssumeRole, assume_service_role
from local_aws.json_service import ApiError
from local_aws.service_quotas import Quotas
from local_aws.settings import ACCOUNT, REGION
from local_aws.training_job import TERMINAL, TrainingJob

SERVICE_PRINCIPAL = "sagemaker.amazonaws.com"

DEFAULT_PAGE = 10  # of ListTrainingJobs, as the API


def job_arn(name: str) -> str:
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}"


class SageMaker:
    """Every training job of the account, by name. A name is used for ever, failed jobs included."""

    def __init__(self, host: Host, quotas: Quotas) -> None:
        self._host = host
        self._quotas = quotas
        self._lock = threading.Lock()
        self._jobs: dict[str, TrainingJob] = {}
        self._tags: dict[str, dict[str, str]] = {}

    def install(self) -> None:
        json_service.install(
            "sagemaker",
            "SageMaker",
            {
                "CreateTrainingJob": self.create_training_job,
                "DescribeTrainingJob": self.describe_training_job,
                "StopTrainingJob": self.stop_training_job,
                "ListTrainingJobs": self.list_training_jobs,
                "AddTags": self.add_tags,
                "ListTags": self.list_tags,
            },
        )

    def create_training_job(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        validation.check("sagemaker", "CreateTrainingJob", request)
        problems = list(_problems(request))
        if problems:
            raise ApiError("ValidationException", "; ".join(problems))
        name = request["TrainingJobName"]
        if self._host.faults.take(name, faults.THROTTLED):
            raise ApiError("ThrottlingException", "Rate exceeded")
        arn = job_arn(name)
        _authorize_creation(request, arn, caller)
        try:
            session = assume_service_role(
                request["RoleArn"],
                service=SERVICE_PRINCIPAL,
                session_name="SageMaker",
                source_arn=arn,
                endpoint_url=self._host.settings.endpoint_url,
            )
        except CannotAssumeRole as error:
            raise ApiError(
                "ValidationException",
                f"Could not assume role {request['RoleArn']}. Please ensure that the role exists and allows "
                f"principal '{SERVICE_PRINCIPAL}' to assume the role. ({error})",
            ) from error
        with self._lock:
            if name in self._jobs:
                raise ApiError(
                    "ResourceInUse",
                    f"Job name must be unique within an AWS account and region, and a job named {arn} exists",
                )
            self._check_quota(request)
            job = TrainingJob(request, arn=arn, session=session, host=self._host)
            self._jobs[name] = job
            self._tags[arn] = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
        job.start()
        return {"TrainingJobArn": arn}

    def describe_training_job(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        validation.check("sagemaker", "DescribeTrainingJob", request)
        caller.require("sagemaker:DescribeTrainingJob", job_arn(request["TrainingJobName"]))
        return self.job(request["TrainingJobName"]).describe()

    def stop_training_job(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        validation.check("sagemaker", "StopTrainingJob", request)
        caller.require("sagemaker:StopTrainingJob", job_arn(request["TrainingJobName"]))
        job = self.job(request["TrainingJobName"])
        if job.status in TERMINAL:
            raise ApiError(
                "ValidationException",
                f"The request was rejected because the training job is in status {job.status}.",
            )
        job.stop()
        return {}

    def list_training_jobs(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Newest first unless asked otherwise, filtered by name and status."""
        validation.check("sagemaker", "ListTrainingJobs", request)
        caller.require("sagemaker:ListTrainingJobs", "*")
        known = {"NameContains", "StatusEquals", "SortBy", "SortOrder", "MaxResults", "NextToken"}
        if request.keys() - known or request.get("SortBy", "CreationTime") != "CreationTime":
            raise ApiError(
                "ValidationException",
                f"local_aws lists by {', '.join(sorted(known))}, sorted by CreationTime",
            )
        newest_first = request.get("SortOrder", "Descending") == "Descending"
        jobs = sorted(self._all(), key=lambda job: job.created, reverse=newest_first)
        found = [
            job
            for job in jobs
            if request.get("NameContains", "") in job.name
            and request.get("StatusEquals", job.status) == job.status
        ]
        begin = int(request.get("NextToken", 0))
        end = begin + request.get("MaxResults", DEFAULT_PAGE)
        page: dict[str, Any] = {
            "TrainingJobSummaries": [_summary(job.describe()) for job in found[begin:end]]
        }
        return page | ({"NextToken": str(end)} if end < len(found) else {})

    def add_tags(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        validation.check("sagemaker", "AddTags", request)
        caller.require("sagemaker:AddTags", request["ResourceArn"])
        tags = self._tags_of(request["ResourceArn"])
        tags.update({tag["Key"]: tag["Value"] for tag in request["Tags"]})
        return {"Tags": _tag_list(tags)}

    def list_tags(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        validation.check("sagemaker", "ListTags", request)
        caller.require("sagemaker:ListTags", request["ResourceArn"])
        return {"Tags": _tag_list(self._tags_of(request["ResourceArn"]))}

    def job(self, name: str) -> TrainingJob:
        """Raises ApiError, a ValidationException, where there is none: SageMaker's answer too."""
        with self._lock:
            if name not in self._jobs:
                raise ApiError("ValidationException", f"Requested resource not found: {job_arn(name)}")
            return self._jobs[name]

    def _all(self) -> list[TrainingJob]:
        with self._lock:
            return list(self._jobs.values())

    def _tags_of(self, arn: str) -> dict[str, str]:
        if arn not in self._tags:
            raise ApiError("ValidationException", f"Requested resource not found: {arn}")
        return self._tags[arn]

    def _check_quota(self, request: dict[str, Any]) -> None:
        instance_type = request["ResourceConfig"]["InstanceType"]
        spot = request.get("EnableManagedSpotTraining", False)
        name, limit = self._quotas.instances(instance_type, spot=spot)
        running = [
            job
            for job in self._jobs.values()
            if job.status not in TERMINAL
            and job.request["ResourceConfig"]["InstanceType"] == instance_type
            and job.request.get("EnableManagedSpotTraining", False) == spot
        ]
        if len(running) + 1 > limit:
            raise ApiError(
                "ResourceLimitExceeded",
                f"The account-level service limit '{name}' is {limit:g} Instances, with current utilization "
                f"of {len(running)} Instances and a request delta of 1 Instances. Please use AWS Service "
                "Quotas to request an increase for this quota.",
            )


def _authorize_creation(request: dict[str, Any], arn: str, caller: Caller) -> None:
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    context: dict[str, Any] = {
        "sagemaker:InstanceTypes": [request["ResourceConfig"]["InstanceType"]],
        **{f"aws:RequestTag/{key}": value for key, value in tags.items()},
        **({"aws:TagKeys": list(tags)} if tags else {}),
    }
    caller.require("sagemaker:CreateTrainingJob", arn, context)
    if tags:
        caller.require("sagemaker:AddTags", arn, context)
    caller.require_pass_role(request["RoleArn"], SERVICE_PRINCIPAL)


def _problems(request: dict[str, Any]) -> Iterator[str]:
    """What CreateTrainingJob's model leaves open, then what this host cannot do."""
    algorithm, resources = request["AlgorithmSpecification"], request.get("ResourceConfig", {})
    stopping, spot = request.get("StoppingCondition"), request.get("EnableManagedSpotTraining", False)
    if stopping is None:
        yield "StoppingCondition is required"
        stopping = {}
    if "InstanceType" not in resources or "VolumeSizeInGB" not in resources:
        yield "ResourceConfig needs InstanceType, InstanceCount and VolumeSizeInGB"
    if "OutputDataConfig" not in request:
        yield "OutputDataConfig is required"
    max_runtime, max_wait = (
        stopping.get("MaxRuntimeInSeconds", 24 * 3600),
        stopping.get("MaxWaitTimeInSeconds"),
    )
    if spot and max_wait is None:
        yield "MaxWaitTimeInSeconds must be present when EnableManagedSpotTraining is set to true"
    if not spot and max_wait is not None:
        yield "MaxWaitTimeInSeconds must not be present when EnableManagedSpotTraining is not set to true"
    if max_wait is not None and max_wait < max_runtime:
        yield "MaxWaitTimeInSeconds must be equal to or greater than MaxRuntimeInSeconds"
    if spot and resources.get("KeepAlivePeriodInSeconds"):
        yield "KeepAlivePeriodInSeconds cannot be used when EnableManagedSpotTraining is set to true"
    if "TrainingImage" not in algorithm or not algorithm.get("ContainerEntrypoint"):
        yield "local_aws runs a TrainingImage by its ContainerEntrypoint: AlgorithmSpecification needs both"
    if resources.get("InstanceCount", 1) != 1:
        yield "local_aws runs one instance a job: ResourceConfig.InstanceCount must be 1"
    if request.get("EnableNetworkIsolation"):
        yield "local_aws cannot isolate a job: EnableNetworkIsolation must be false"
    for channel in request.get("InputDataConfig", []):
        mode = channel.get("InputMode", algorithm["TrainingInputMode"])
        if mode not in ("File", "FastFile") or "S3DataSource" not in channel["DataSource"]:
            yield f"local_aws copies File and FastFile channels from S3; {channel['ChannelName']} is neither"


def _summary(job: dict[str, Any]) -> dict[str, Any]:
    names = (
        "TrainingJobName",
        "TrainingJobArn",
        "CreationTime",
        "TrainingEndTime",
        "LastModifiedTime",
        "TrainingJobStatus",
        "SecondaryStatus",
    )
    return {name: job[name] for name in names if name in job}


def _tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
