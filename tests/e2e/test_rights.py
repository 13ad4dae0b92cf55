"""What each statement of the two roles is for: without it a run fails, at a place that says so.

The rights are taken from the deployed roles, one at a time, and given back. Not shown here, since
nothing on this machine asks for them: s3:AbortMultipartUpload, ecr:BatchCheckLayerAvailability,
cloudwatch:PutMetricData, delivery of the executions' own log, X-Ray.
"""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.deployed import TOY, Deployed
from trainer.layout import RunLayout

ALONE = {**TOY, "n_replicas": 1}
# Read and listed below diloco-in/, by a trainer that looks for a data set first.
ON_TEXT = {"n_replicas": 1, "dataset_uri": "diloco-in/rights"}


def run_name(action: str, on: str) -> str:
    return "no-" + f"{action}-{on}".replace(":", "-").replace(".", "-").strip("-")


@pytest.mark.parametrize(
    ("action", "on", "given", "said"),
    [
        ("s3:GetObject", "diloco-rdv", ALONE, "GET {bucket}/diloco-rdv/{run}/run.json was denied: "),
        ("s3:PutObject", "diloco-rdv", ALONE, "PUT {bucket}/diloco-rdv/{run}/claims/rank_0000.0.json was"),
        (
            "s3:PutObject",
            "diloco-data",
            ALONE,
            "PUT {bucket}/diloco-data/{run}/round_000000/rank_0000.c0.bin",
        ),
        ("s3:PutObject", "diloco-out", ALONE, "PUT {bucket}/diloco-out/{run}/model/weights.txt was denied: "),
        ("s3:GetObject", "diloco-in", ON_TEXT, "dataset_uri {bucket}/diloco-in/rights: reading was denied ("),
    ],
)
def test_a_replica_without_a_right_to_the_bucket_says_what_was_denied(
    deployed: Deployed, action: str, on: str, given: dict[str, Any], said: str
) -> None:
    """Denied is denied: it is not relaunched, though it might be twice."""
    deployed.put("diloco-in/rights/a.txt", b"text")
    name = run_name(action, on)
    with deployed.without(deployed.replica_role, action, on):
        ended = deployed.execute(name, given)
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert deployed.job_statuses(ended["executionArn"]) == {"r0-a0": "Failed"}
    reason = deployed.jobs(ended["executionArn"])["r0-a0"]["FailureReason"]
    where = said.format(bucket=f"s3://{deployed.bucket}", run=name)
    assert reason.startswith(f"AlgorithmError: AccessDenied: rank 0: {where}")
    assert action in reason
    assert reason.endswith(", exit code: 12")
    assert ended["cause"].startswith(f"rank 0 failed in attempt 1: {reason}. Log: ")


@pytest.mark.parametrize(
    ("action", "on", "said"),
    [
        ("s3:ListBucket", "", "Data download failed:{checkpoints}: "),
        ("s3:GetObject", "diloco-ckpt", "Data download failed:{checkpoints}: "),
        ("s3:PutObject", "diloco-ckpt", "Artifact upload failed:Checkpoints: "),
        ("s3:DeleteObject", "diloco-ckpt", "Artifact upload failed:Checkpoints: "),
    ],
)
def test_checkpoints_that_may_not_be_copied_end_the_job_in_words(
    deployed: Deployed, action: str, on: str, said: str
) -> None:
    name = run_name(action, on)
    deployed.put(f"{RunLayout(name).checkpoint_prefix(0)}/earlier", b"x")
    with deployed.without(deployed.replica_role, action, on):
        ended = deployed.execute(name, {**ALONE, "trainer_fn": "replaces_a_checkpoint"})
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert deployed.job_statuses(ended["executionArn"]) == {"r0-a0": "Failed"}  # it would be denied again
    where = f"s3://{deployed.bucket}/{RunLayout(name).checkpoint_prefix(0)}/"
    start = f"ClientError: {said.format(checkpoints=where)}"
    assert ended["cause"].startswith(f"rank 0 failed in attempt 1: {start}")


@pytest.mark.parametrize(
    "action", ["ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer", "ecr:BatchGetImage"]
)
def test_a_replica_that_may_not_pull_its_image_does_not_start(deployed: Deployed, action: str) -> None:
    name = run_name(action, "")
    with deployed.without(deployed.replica_role, action):
        ended = deployed.execute(name, {**ALONE, "max_relaunches": 0})
    image = deployed.asked_for("TrainingImage")
    assert ended["cause"].startswith(f"rank 0 failed in attempt 1: ClientError: Cannot pull {image}: ")
    assert f"is not authorized to perform: {action} " in ended["cause"]
    assert deployed.keys(RunLayout(name).claims_prefix) == []


def test_a_replica_that_may_not_log_trains_in_silence(deployed: Deployed) -> None:
    """SageMaker's way: the job has no log stream, and nothing else is said."""
    with deployed.without(deployed.replica_role, "logs:CreateLogStream"):
        ended = deployed.execute("no-log", ALONE)
    assert ended["status"] == "SUCCEEDED", ended["cause"]
    (replica,) = json.loads(ended["output"])["replicas"]
    assert deployed.job_log(replica["job_name"]) == []


@pytest.mark.parametrize(
    ("action", "jobs"),
    [
        ("sagemaker:CreateTrainingJob", {}),
        ("sagemaker:AddTags", {}),
        ("iam:PassRole", {}),
        ("sagemaker:DescribeTrainingJob", {"r0-a0": "Completed"}),  # asked for when the job has ended
    ],
)
def test_a_state_machine_that_may_not_run_a_job_names_the_right(
    deployed: Deployed, action: str, jobs: dict[str, str]
) -> None:
    with deployed.without(deployed.machine_role, action):
        ended = deployed.execute(run_name(action, ""), ALONE)
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert ended["cause"].startswith(
        "rank 0 failed in attempt 1: its training job was refused: SageMaker.AmazonSageMakerException: "
    )
    assert f"is not authorized to perform: {action} on resource: " in ended["cause"]
    assert deployed.job_statuses(ended["executionArn"]) == jobs


def test_a_state_machine_that_may_not_read_a_result_has_none(deployed: Deployed) -> None:
    with deployed.without(deployed.machine_role, "s3:GetObject", on="results"):
        ended = deployed.execute("no-result", ALONE)
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert ended["cause"].startswith(
        "rank 0 failed in attempt 1: its job completed, but left no result that can be read: S3.S3Exception: "
    )
    assert "is not authorized to perform: s3:GetObject " in ended["cause"]


def test_what_only_steers_peers_may_be_denied_and_the_failure_is_still_the_replica_s(
    deployed: Deployed,
) -> None:
    """No abort marker, no progress touched: the rank is relaunched and the run fails all the same."""
    given = {**ALONE, "trainer_fn": "broken", "max_relaunches": 1}
    role, put = deployed.machine_role, "s3:PutObject"
    with deployed.without(role, put, on="abort.json"), deployed.without(role, put, on="progress"):
        ended = deployed.execute("no-steering", given)
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert ended["cause"].startswith(
        "rank 0 failed in attempt 2: AlgorithmError: RuntimeError: rank 0: out of"
    )
    assert deployed.keys(RunLayout("no-steering").abort) == []


def test_jobs_that_may_not_be_stopped_run_on_and_the_run_s_end_is_said(deployed: Deployed) -> None:
    with deployed.without(deployed.machine_role, "sagemaker:StopTrainingJob"):
        ended = deployed.execute("no-stop", {**TOY, "trainer_fn": "broken_rank_1", "max_relaunches": 0})
        arn = ended["executionArn"]
        assert deployed.job_statuses(arn) == {"r0-a0": "InProgress", "r1-a0": "Failed"}
    assert ended["cause"].startswith(
        "rank 1 failed in attempt 1: AlgorithmError: RuntimeError: rank 1: out of"
    )
    name = deployed.jobs(arn)["r0-a0"]["TrainingJobName"]
    deployed.client("sagemaker").stop_training_job(TrainingJobName=name)
    assert deployed.job_statuses(arn)["r0-a0"] == "Stopped"


@pytest.mark.parametrize("action", ["events:PutRule", "events:PutTargets", "events:DescribeRule"])
def test_a_state_machine_that_may_not_hear_of_jobs_is_not_deployed(deployed: Deployed, action: str) -> None:
    states = deployed.client("stepfunctions")
    update = {"stateMachineArn": deployed.machine, "definition": json.dumps(deployed.definition())}
    with deployed.without(deployed.machine_role, action), pytest.raises(ClientError) as caught:
        states.update_state_machine(**update)
    assert caught.value.response["Error"]["Code"] == "AccessDeniedException"
    assert f"is not authorized to perform: {action} on" in str(caught.value)
    states.update_state_machine(**update)
