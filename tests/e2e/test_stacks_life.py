"""A deployment's life: nothing changes where nothing has changed, and a sandbox leaves nothing."""

import contextlib
import json
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from tests.support.stacks import Stacks, deployed

SANDBOX = ("-c", "sandbox=true")


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with deployed(tmp_path_factory.mktemp("stacks"), *SANDBOX) as stacks:
        yield stacks


def _builds(stacks: Stacks) -> list[str]:
    return list(stacks.client("codebuild").list_builds()["ids"])


def test_after_a_deployment_there_is_no_difference(stacks: Stacks) -> None:
    assert "Number of stacks with differences: 0" in stacks.cdk("diff", "--all", "--fail", *SANDBOX)


def test_unchanged_sources_build_nothing(stacks: Stacks) -> None:
    (build,) = _builds(stacks)
    stacks.deploy(*SANDBOX)
    stacks.deploy(*SANDBOX, "-c", "log_retention_days=30")
    assert _builds(stacks) == [build]


def test_jobs_are_started_by_the_digest_of_the_image_that_was_pushed(stacks: Stacks) -> None:
    ecr = stacks.client("ecr")
    (repository,) = ecr.describe_repositories()["repositories"][:1]
    digests = {
        image["imageDigest"]
        for found in ecr.describe_repositories()["repositories"]
        for image in ecr.describe_images(repositoryName=found["repositoryName"])["imageDetails"]
    }
    machine = stacks.client("stepfunctions").describe_state_machine(stateMachineArn=stacks.machine)
    (digest,) = [digest for digest in digests if f"@{digest}" in machine["definition"]]
    assert digest.startswith("sha256:")
    assert repository["repositoryUri"]


def test_two_stages_live_side_by_side_and_one_goes_without_the_other(stacks: Stacks) -> None:
    first_machine, first_bucket = stacks.machine, stacks.bucket
    other = ("-c", "prefix=staging", "-c", "image_uri=example/image:1")
    stacks.deploy(*other, prefix="staging")
    second_bucket = stacks.bucket
    assert [stacks.machine != first_machine, second_bucket != first_bucket] == [True, True]
    stacks.client("s3").put_object(Bucket=second_bucket, Key="diloco-out/run/model/x", Body=b"x")
    stacks.cdk("destroy", "--all", "--force", *other)
    # Not a sandbox: what a run has left stays.
    stacks.client("s3").get_object(Bucket=second_bucket, Key="diloco-out/run/model/x")
    stacks.machine, stacks.bucket = first_machine, first_bucket
    assert stacks.client("stepfunctions").describe_state_machine(stateMachineArn=first_machine)


def test_a_sandbox_leaves_nothing(stacks: Stacks) -> None:
    s3 = stacks.client("s3")
    for number in range(1100):  # more than one page
        s3.put_object(Bucket=stacks.bucket, Key=f"diloco-data/run/{number}", Body=b"x")
    s3.create_multipart_upload(Bucket=stacks.bucket, Key="diloco-data/run/unfinished")
    stacks.cdk("destroy", "--all", "--force", *SANDBOX)
    with pytest.raises(ClientError):
        s3.head_bucket(Bucket=stacks.bucket)
    with pytest.raises(ClientError):
        stacks.client("stepfunctions").describe_state_machine(stateMachineArn=stacks.machine)


def test_a_run_goes_through_in_a_closed_network_with_a_key_and_a_secret(stacks: Stacks) -> None:
    """That nothing gets out, and that volumes take the key, only AWS can show; here, that rights suffice."""
    secret = stacks.client("secretsmanager").create_secret(
        Name="hub", SecretString=json.dumps({"HF_TOKEN": "hush"})
    )["ARN"]
    settings = ("customer_key=true", "isolated_network=true", f"secret_arn={secret}", "prefix=closed",
                "image_uri=public.ecr.aws/docker/library/python:3.11-slim", "sandbox=true")  # fmt: skip
    stacks.deploy(*(argument for setting in settings for argument in ("-c", setting)), prefix="closed")
    end = stacks.run("closed", {"n_replicas": 1, "max_relaunches": 0})
    assert end["status"] == "SUCCEEDED", end
    job = stacks.client("sagemaker").describe_training_job(TrainingJobName=stacks.jobs()[0])
    assert len(job["VpcConfig"]["Subnets"]) == 2
    assert job["ResourceConfig"]["VolumeKmsKeyId"] == job["OutputDataConfig"]["KmsKeyId"]
    assert "hush" not in json.dumps(job, default=str)
    with without_secret(stacks):
        end = stacks.run("no-secret", {"n_replicas": 1, "max_relaunches": 0})
    assert [end["error"], "AccessDenied" in end["cause"]] == ["ReplicaFailed", True], end


@contextlib.contextmanager
def without_secret(stacks: Stacks) -> Iterator[None]:
    """The replica's right to read the secret, taken away."""
    iam, name = stacks.client("iam"), stacks.role_named("closed-runs-ReplicaRole")
    (policy,) = iam.list_role_policies(RoleName=name)["PolicyNames"]
    document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
    left = [statement for statement in document["Statement"] if statement.get("Sid") != "ReadSecret"]
    assert len(left) == len(document["Statement"]) - 1
    changed = json.dumps({**document, "Statement": left})
    iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=changed)
    yield
