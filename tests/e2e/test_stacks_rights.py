"""Quotas and rights of the deployed stacks, where the embedded AWS evaluates them for real."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.stacks import Stacks, deployed
from trainer.layout import RunLayout

M5 = "ml.m5.xlarge for training job usage"
# 35 pages of 100; what is asked for sorts to the last.
QUOTAS: dict[str, Any] = {f"a quota of something else {number:04d}": number for number in range(3430)} | {
    M5: 3,
    "ml.c5.xlarge for training job usage": None,  # among the defaults only
}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with deployed(tmp_path_factory.mktemp("stacks"), quotas=QUOTAS) as stacks:
        yield stacks


def test_a_quota_on_the_last_of_35_pages_ends_a_run_before_any_job_exists(stacks: Stacks) -> None:
    end = stacks.run("too-many", {"n_replicas": 4})
    assert [end["status"], end.get("error")] == ["FAILED", "QuotaTooSmall"], end
    assert f"the quota {M5} is 3, and this run needs 4" in end["cause"]
    assert stacks.jobs() == []
    history = stacks.client("stepfunctions").get_execution_history(
        executionArn=end["executionArn"], maxResults=1000
    )
    entered = [
        e["stateEnteredEventDetails"]["name"] for e in history["events"] if "stateEnteredEventDetails" in e
    ]
    assert entered.count("ListQuotas") == 35
    assert "WriteRunFile" not in entered


def test_a_default_counts_where_no_value_is_applied(stacks: Stacks) -> None:
    end = stacks.run("by-default", {"n_replicas": 31, "instance_type": "ml.c5.xlarge"})
    assert [end["status"], end.get("error")] == ["FAILED", "QuotaTooSmall"], end
    assert "ml.c5.xlarge for training job usage is 30, and this run needs 31" in end["cause"]


def test_the_smoke_run_sums_up_what_it_cost(stacks: Stacks) -> None:
    end = stacks.run("smoke", {})
    assert end["status"] == "SUCCEEDED", end
    summary = json.loads(end["output"])
    assert summary["billable_s"] == sum(replica["billable_s"] for replica in summary["replicas"]) > 0
    assert {replica["instance_type"] for replica in summary["replicas"]} == {"ml.m5.xlarge"}


@contextlib.contextmanager
def without(stacks: Stacks, role: str, sid: str) -> Iterator[None]:
    """One statement of a deployed role taken away."""
    iam, name = stacks.client("iam"), stacks.role_named(role)
    (policy,) = iam.list_role_policies(RoleName=name)["PolicyNames"]
    document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
    left = [statement for statement in document["Statement"] if statement.get("Sid") != sid]
    assert len(left) == len(document["Statement"]) - 1
    changed = json.dumps({**document, "Statement": left})
    iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=changed)
    try:
        yield
    finally:
        iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=json.dumps(document))


REPLICA, MACHINE = "ReplicaRole", "RunsRole"


@pytest.mark.parametrize(
    ("role", "sid", "parameters", "error", "said"),
    [
        (MACHINE, "RunReplicas", {}, "ReplicaFailed", "sagemaker:CreateTrainingJob"),
        (MACHINE, "HandOverReplicaRole", {}, "ReplicaFailed", "iam:PassRole"),
        (MACHINE, "SteerRuns", {}, "RunNotRecorded", "not authorized to perform: s3:PutObject"),
        (MACHINE, "ReadResults", {"n_replicas": 1}, "ReplicaFailed", "left no result that can be read"),
        (REPLICA, "AddToRuns", {"n_replicas": 1}, "ReplicaFailed", "AccessDenied"),
        (REPLICA, "ListRuns", {"n_replicas": 1}, "ReplicaFailed", "Data download failed:s3://"),
        (REPLICA, "PullTrainerImage", {"n_replicas": 1}, "ReplicaFailed", "ecr:"),
        (
            REPLICA,
            "ReadInputs",
            {"n_replicas": 1, "dataset_uri": "diloco-in/text"},
            "ReplicaFailed",
            "AccessDenied",
        ),
    ],
)
def test_without_a_statement_a_run_fails_at_a_named_place(
    role: str, sid: str, parameters: dict[str, Any], error: str, said: str, stacks: Stacks
) -> None:
    text = "".join(f"line {number} of a text to read\n" for number in range(3000))
    for number in range(20):
        stacks.client("s3").put_object(
            Bucket=stacks.bucket, Key=f"diloco-in/text/{number}.txt", Body=text.encode()
        )
    with without(stacks, role, sid):
        end = stacks.run(f"without-{sid}", {"max_relaunches": 0, **parameters})
    assert [end["status"], end.get("error")] == ["FAILED", error], end
    assert said in end["cause"], end["cause"]


def test_with_all_statements_the_same_run_succeeds(stacks: Stacks) -> None:
    """What the tests above would prove nothing without."""
    end = stacks.run("with-all", {"n_replicas": 1, "dataset_uri": "diloco-in/text", "max_relaunches": 0})
    assert end["status"] == "SUCCEEDED", end


def test_without_the_right_to_read_quotas_a_run_is_not_stopped_by_them(stacks: Stacks) -> None:
    with without(stacks, MACHINE, "ReadQuotas"):
        end = stacks.run("without-quotas", {"n_replicas": 1})
    assert end["status"] == "SUCCEEDED", end


def test_without_the_rights_to_its_rule_no_state_machine_can_wait_for_jobs(stacks: Stacks) -> None:
    """Step Functions looks when a machine is made or changed: "managed-rule" in its refusal."""
    states = stacks.client("stepfunctions")
    machine = states.describe_state_machine(stateMachineArn=stacks.machine)
    with without(stacks, MACHINE, "HearOfJobsEnding"), pytest.raises(ClientError, match="managed-rule"):
        states.update_state_machine(stateMachineArn=stacks.machine, definition=machine["definition"])


def test_without_the_right_to_write_logs_a_replicas_words_are_lost(stacks: Stacks) -> None:
    with without(stacks, REPLICA, "WriteLogs"):
        end = stacks.run("without-logs", {"n_replicas": 1, "max_relaunches": 0})
    name = stacks.jobs()[0]
    streams = stacks.client("logs").describe_log_streams(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=name
    )["logStreams"]
    assert streams == [], end


def _as_replica(stacks: Stacks) -> Any:
    """S3 with a replica's rights. Its trust is for SageMaker; a copy of its policy goes to a role of ours."""
    iam, name = stacks.client("iam"), stacks.role_named(REPLICA)
    (policy,) = iam.list_role_policies(RoleName=name)["PolicyNames"]
    document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    trusted = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="like-a-replica", AssumeRolePolicyDocument=trusted)
    iam.put_role_policy(RoleName="like-a-replica", PolicyName="p", PolicyDocument=json.dumps(document))
    arn = iam.get_role(RoleName="like-a-replica")["Role"]["Arn"]
    session = stacks.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")
    return stacks.client("s3", session["Credentials"])


def test_a_replica_deletes_its_checkpoints_and_nothing_else(stacks: Stacks) -> None:
    s3, bucket = _as_replica(stacks), stacks.bucket
    for prefix in ("diloco-ckpt", "diloco-data", "diloco-out"):
        s3.put_object(Bucket=bucket, Key=f"{prefix}/a/b", Body=b"x")
    s3.delete_object(Bucket=bucket, Key="diloco-ckpt/a/b")
    for key in ("diloco-data/a/b", "diloco-out/a/b", "diloco-rdv/smoke/run.json", "diloco-in/text/0.txt"):
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.put_object(Bucket=bucket, Key="diloco-in/text/0.txt", Body=b"x")


RUN = RunLayout("some-run")


@pytest.mark.parametrize(
    "key",
    [RUN.run_file, RUN.abort, RUN.initial, RUN.claim(0, 1), RUN.contribution(0, 0), RUN.roster(0),
     RUN.event(0, 0), RUN.result(0)],
)  # fmt: skip
def test_an_entry_of_the_log_is_put_by_create_only_puts_alone(key: str, stacks: Stacks) -> None:
    s3 = _as_replica(stacks)
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.put_object(Bucket=stacks.bucket, Key=key, Body=b"first")
    s3.put_object(Bucket=stacks.bucket, Key=key, Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=stacks.bucket, Key=key, Body=b"other", IfNoneMatch="*")
    assert s3.get_object(Bucket=stacks.bucket, Key=key)["Body"].read() == b"first"


@pytest.mark.parametrize("key", [RUN.progress(0), RUN.initial_payload(0, 0), RUN.payload(0, 0, 0)])
def test_progress_and_payloads_are_put_plainly_and_in_parts(key: str, stacks: Stacks) -> None:
    s3 = _as_replica(stacks)
    s3.put_object(Bucket=stacks.bucket, Key=key, Body=b"x")
    upload = s3.create_multipart_upload(Bucket=stacks.bucket, Key=key)["UploadId"]
    where = {"Bucket": stacks.bucket, "Key": key, "UploadId": upload}
    part = s3.upload_part(**where, PartNumber=1, Body=b"x" * 100)
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(**where, MultipartUpload=parts)
