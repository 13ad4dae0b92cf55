"""What CreateTrainingJob accepts, who may call it, and what the other calls list."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

CREATE = ("sagemaker:CreateTrainingJob",)


def refused(account: Any, request: dict[str, Any], client: Any = None) -> tuple[str, str]:
    """Code and message of the error that CreateTrainingJob answers."""
    with pytest.raises(ClientError) as caught:
        (client or account.client("sagemaker")).create_training_job(**request)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_every_constraint_of_the_model_that_is_broken_is_named(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "true", TrainingJobName="under_score")
    request["AlgorithmSpecification"]["ContainerArguments"] = ["x" * 257]
    request["ResourceConfig"]["InstanceType"] = "ml.m5.tiny"
    code, message = refused(account, request)
    assert code == "ValidationException"
    assert message.startswith("3 validation errors detected: ")
    assert (
        "'under_score' at 'trainingJobName' failed to satisfy constraint: Member must satisfy regular"
        in message
    )
    assert "'algorithmSpecification.containerArguments.1.member'" in message
    assert (
        "at 'resourceConfig.instanceType' failed to satisfy constraint: Member must satisfy enum" in message
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds must be present"),
        (
            {
                "EnableManagedSpotTraining": True,
                "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 59},
            },
            "MaxWaitTimeInSeconds must be equal to or greater than MaxRuntimeInSeconds",
        ),
        (
            {"ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1}},
            "InstanceCount must be 1",
        ),
        ({"EnableNetworkIsolation": True}, "EnableNetworkIsolation must be false"),
    ],
)
def test_what_the_model_leaves_open_is_checked_too(
    account: Any, job_role: str, changes: dict[str, Any], said: str
) -> None:
    code, message = refused(account, account.job_request(job_role, "true", **changes))
    assert code == "ValidationException"
    assert said in message


def test_managed_spot_is_accepted_and_recorded(account: Any, job_role: str) -> None:
    request = account.job_request(
        job_role,
        "true",
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
    )
    job = account.run_job(request)
    assert (job["TrainingJobStatus"], job["EnableManagedSpotTraining"]) == ("Completed", True)


def test_an_instance_type_without_quota_is_refused_with_the_quota_s_name(account: Any, job_role: str) -> None:
    resources = {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}
    code, message = refused(account, account.job_request(job_role, "true", ResourceConfig=resources))
    assert code == "ResourceLimitExceeded"
    assert "'ml.p5.48xlarge for training job usage' is 0 Instances" in message


def test_a_caller_without_the_right_is_denied(account: Any, job_role: str) -> None:
    sagemaker = account.client("sagemaker", account.assume(account.allow("s3:*")))
    request = account.job_request(job_role, "true")
    code, message = refused(account, request, sagemaker)
    assert code == "AccessDeniedException"
    assert ":assumed-role/" in message
    assert f"sagemaker:CreateTrainingJob on resource: {job_arn(request)}" in message
    for call in (sagemaker.describe_training_job, sagemaker.stop_training_job):
        with pytest.raises(ClientError, match="AccessDenied"):
            call(TrainingJobName=request["TrainingJobName"])


def test_a_caller_needs_pass_role_for_sagemaker(account: Any, job_role: str) -> None:
    for_lambda = {
        **account.allow("iam:PassRole", on=job_role),
        "Condition": {"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}},
    }
    keys = account.assume(account.allow(*CREATE), for_lambda)
    code, message = refused(account, account.job_request(job_role, "true"), account.client("sagemaker", keys))
    assert code == "AccessDeniedException"
    assert f"iam:PassRole on resource: {job_role}" in message


def test_tags_need_add_tags_and_are_listed(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "true", Tags=[{"Key": "run", "Value": "r1"}])
    keys = account.assume(account.allow(*CREATE), account.allow("iam:PassRole"))
    code, message = refused(account, request, account.client("sagemaker", keys))
    assert (code, "sagemaker:AddTags" in message) == ("AccessDeniedException", True)

    account.start_job(request)
    tags = account.client("sagemaker").list_tags(ResourceArn=job_arn(request))["Tags"]
    assert tags == [{"Key": "run", "Value": "r1"}]


def test_the_execution_role_must_trust_sagemaker_for_this_job(account: Any) -> None:
    elsewhere = {"ArnLike": {"aws:SourceArn": "arn:aws:sagemaker:us-east-1:000000000000:processing-job/*"}}
    role = account.job_role(condition=elsewhere)
    code, message = refused(account, account.job_request(role, "true"))
    assert code == "ValidationException"
    assert message.startswith(f"Could not assume role {role}.")
    for_lambda = account.role({"Service": "lambda.amazonaws.com"})
    assert refused(account, account.job_request(for_lambda, "true"))[1].startswith("Could not assume role")


def test_a_role_that_may_not_write_its_output_fails_its_job(account: Any) -> None:
    role = account.job_role(account.allow("logs:*"))
    code = "open(base + '/model/m', 'w').write('x')"
    job = account.run_job(account.python_job(role, code))
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("ClientError: Artifact upload failed:")
    assert "AccessDenied" in job["FailureReason"]


def test_the_job_itself_acts_as_its_role(account: Any) -> None:
    role = account.job_role(account.allow("s3:GetObject", on=f"arn:aws:s3:::{account.bucket}/*"))
    code = (
        "import boto3, pathlib, sys\n"
        f"try: boto3.client('s3').put_object(Bucket='{account.bucket}', Key='denied', Body=b'x')\n"
        "except Exception as error:\n"
        "    pathlib.Path(base, 'output/failure').write_text(str(error))\n"
        "    sys.exit(1)"
    )
    job = account.run_job(account.python_job(role, code))
    assert "AlgorithmError: An error occurred (AccessDenied)" in job["FailureReason"]


def test_an_image_of_the_account_must_exist_and_be_readable(account: Any, job_role: str) -> None:
    account.client("ecr").create_repository(repositoryName="trainer")
    image = "000000000000.dkr.ecr.us-east-1.amazonaws.com/trainer:v1"
    puller = account.job_role(account.allow("ecr:*"))
    for role, said in ((job_role, "ecr:GetAuthorizationToken"), (puller, "has no such image")):
        request = account.job_request(role, "true")
        request["AlgorithmSpecification"]["TrainingImage"] = image
        reason = account.run_job(request)["FailureReason"]
        assert reason.startswith(f"ClientError: Cannot pull {image}: ")
        assert said in reason


def test_jobs_are_listed_newest_first_by_name_and_status(account: Any, job_role: str) -> None:
    word = account.unique("listed")
    for suffix, command in (("a", "true"), ("b", "false"), ("c", "true")):
        account.run_job(account.job_request(job_role, command, TrainingJobName=f"{word}-{suffix}"))
    sagemaker = account.client("sagemaker")

    def names(**filters: Any) -> list[str]:
        pages = sagemaker.get_paginator("list_training_jobs").paginate(
            NameContains=word, PaginationConfig={"PageSize": 1}, **filters
        )
        return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]

    assert names() == [f"{word}-c", f"{word}-b", f"{word}-a"]
    assert names(StatusEquals="Completed", SortOrder="Ascending") == [f"{word}-a", f"{word}-c"]


def test_an_unknown_job_is_not_found(account: Any) -> None:
    with pytest.raises(ClientError, match="Requested resource not found"):
        account.client("sagemaker").describe_training_job(TrainingJobName="nobody")


@pytest.mark.parametrize(
    ("service", "call", "said"),
    [
        ("sagemaker", "list_endpoints", "sagemaker:ListEndpoints"),
        ("redshift", "describe_clusters", "redshift:DescribeClusters"),
        ("polly", "describe_voices", "polly, GET /v1/voices"),
        ("comprehend", "list_endpoints", "comprehend:ListEndpoints"),
        ("sagemaker-runtime", "invoke_endpoint", "sagemaker, POST /endpoints/e/invocations"),
        ("s3", "get_object_torrent", "s3, GET /bucket/key?torrent"),
    ],
)
def test_what_nobody_emulates_is_refused_by_name(account: Any, service: str, call: str, said: str) -> None:
    arguments: dict[str, dict[str, Any]] = {
        "invoke_endpoint": {"EndpointName": "e", "Body": b""},
        "get_object_torrent": {"Bucket": "bucket", "Key": "key"},
    }
    with pytest.raises(ClientError) as caught:
        getattr(account.client(service), call)(**arguments.get(call, {}))
    assert caught.value.response["Error"]["Code"] == "UnsupportedOperation"
    assert f"local_aws does not emulate {said}" in caught.value.response["Error"]["Message"]


def test_quotas_are_paged(account: Any) -> None:
    quotas = account.client("service-quotas")
    for listing in ("list_service_quotas", "list_aws_default_service_quotas"):
        pages = quotas.get_paginator(listing).paginate(
            ServiceCode="sagemaker", PaginationConfig={"PageSize": 5}
        )
        values = {q["QuotaName"]: q["Value"] for page in pages for q in page["Quotas"]}
        assert values["ml.m5.xlarge for training job usage"] == 30
        assert len(values) > 5


def job_arn(request: dict[str, Any]) -> str:
    return f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{request['TrainingJobName']}"
