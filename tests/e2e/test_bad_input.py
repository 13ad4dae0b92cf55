"""Wrong input through the whole chain: refused before anything starts, or one clear error in both places."""

from typing import Any

import pytest

from tests.support.deployed import TOY, Deployed

ALONE = {**TOY, "n_replicas": 1, "max_relaunches": 2}


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        (
            "no-data",
            {"n_replicas": 1, "dataset_uri": "diloco-in/none"},
            "BadDataSet: rank 0: dataset_uri s3://{bucket}/diloco-in/none: no data files "
            "(.txt, .md, .rst, .py, .jsonl, .json, .parquet, plain or with .gz, .zst, .xz, .bz2) below it, "
            "exit code: 11",
        ),
        (
            "no-function",
            {**ALONE, "trainer_fn": "none"},
            "BadTrainer: rank 0: trainer_fn none: tests.support.trainers has no such function, exit code: 10",
        ),
        (
            "no-callable",
            {**ALONE, "trainer_fn": "not_a_function"},
            "BadTrainer: rank 0: trainer_fn not_a_function: tests.support.trainers has no such function, "
            "exit code: 10",
        ),
        (
            "no-module",
            {**ALONE, "trainer_module": "none.such"},
            "BadTrainer: rank 0: trainer_module none.such: cannot be imported: No module named 'none', "
            "exit code: 10",
        ),
    ],
)
def test_one_clear_error_stands_in_the_job_and_in_the_execution_and_nothing_is_relaunched(
    deployed: Deployed, name: str, given: dict[str, Any], reason: str
) -> None:
    ended = deployed.execute(name, given)
    expected = f"AlgorithmError: {reason.format(bucket=deployed.bucket)}"
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    jobs = deployed.jobs(ended["executionArn"])
    assert {ending: job["FailureReason"] for ending, job in jobs.items()} == {"r0-a0": expected}
    assert ended["cause"].startswith(f"rank 0 failed in attempt 1: {expected}. Log: group ")


def test_a_data_set_in_a_bucket_that_is_not_the_run_s_is_denied(deployed: Deployed) -> None:
    deployed.client("s3").create_bucket(Bucket="somebody-elses")
    ended = deployed.execute("denied", {"n_replicas": 1, "dataset_uri": "s3://somebody-elses/text"})
    denied = (
        "AlgorithmError: AccessDenied: rank 0: dataset_uri s3://somebody-elses/text: reading was denied ("
    )
    job = deployed.jobs(ended["executionArn"])["r0-a0"]
    assert job["FailureReason"].startswith(denied)
    assert "is not authorized to perform: s3:ListBucket" in job["FailureReason"]
    assert ended["cause"].startswith(f"rank 0 failed in attempt 1: {job['FailureReason']}. Log: group ")


def test_a_trainer_that_crashes_as_it_is_imported_is_named(deployed: Deployed) -> None:
    given = {**ALONE, "trainer_module": "tests.support.crashing_trainer", "max_relaunches": 0}
    ended = deployed.execute("crash", given)
    reason = "AlgorithmError: ZeroDivisionError: rank 0: division by zero, exit code: 1"
    (job,) = deployed.jobs(ended["executionArn"]).values()
    assert job["FailureReason"] == reason
    assert ended["cause"].startswith(f"rank 0 failed in attempt 1: {reason}. Log: group ")
    log = deployed.job_log(job["TrainingJobName"])  # where the Cause sends its reader
    assert any("crashing_trainer.py" in line for line in log)


def test_the_client_says_every_problem_at_once_and_starts_nothing(deployed: Deployed) -> None:
    before = _executions(deployed)
    file = deployed.parameters("bad", {"n_replicas": 0, "totl_steps": 4, "outer_lr": "high", "sync_every": 3})
    done = deployed.runs("start", file, "--name", "bad-1", "--follow")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "InvalidRunParameters: n_replicas: must be a whole number from 1 to 40, not 0; "
        "outer_lr: must be a number above 0, at most 10, not 'high'; "
        "totl_steps: no such run parameter; "
        "total_steps: must be a multiple of sync_every (sync_every=3, total_steps=4): "
        "the run would end with unsent work\n"
    )
    assert _executions(deployed) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "InvalidRunParameters: input: must be a JSON object of run parameters, not an array\n"),
        ("{", "InvalidRunParameters: {file}: is not JSON: "),
    ],
)
def test_a_file_that_holds_no_parameters_is_one_line(deployed: Deployed, text: str, said: str) -> None:
    file = deployed.folder / "none.json"
    file.write_text(text)
    done = deployed.runs("start", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said.format(file=file))
    assert done.stderr.count("\n") == 1


def test_where_nothing_is_deployed_it_is_one_line(deployed: Deployed) -> None:
    done = deployed.runs("--prefix", "elsewhere", "start", deployed.parameters("toy", TOY))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "NotDeployed: no stack elsewhere-runs in us-east-1: deploy it with `cdk deploy --all`\n"
    )


def test_a_run_that_left_no_model_is_one_line(deployed: Deployed) -> None:
    done = deployed.runs("download-model", "never-was")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"NoModel: nothing below s3://{deployed.bucket}/diloco-out/never-was/model/: "
        "has run never-was finished?\n"
    )


def _executions(deployed: Deployed) -> list[str]:
    pages = deployed.client("stepfunctions").get_paginator("list_executions")
    found = pages.paginate(stateMachineArn=deployed.machine)
    return sorted(execution["name"] for page in found for execution in page["executions"])
