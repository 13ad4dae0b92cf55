"""Every way in which the state machine can fail a run, by the name a user would search for."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.deployed import LOG_GROUP, TOY, Deployed
from trainer.layout import RunLayout, job_hash

NEW_START = "Start a new execution under another name; redriving this one is not supported."

# What the Fail states are shown by, below. GiveUp is an iteration's, and its Cause becomes ReplicaFailed's.
SHOWN = {
    "InvalidRunParameters": "test_wrong_parameters_are_named_with_their_bounds_and_nothing_is_started",
    "RunNameTaken": "test_a_name_that_becomes_another_run_s_id_is_refused",
    "RunNotRecorded": "test_a_bucket_that_takes_no_run_file_is_said",
    "QuotaTooSmall": "test_a_quota_too_small_is_said_with_both_numbers",
    "GiveUp": "test_a_replica_that_keeps_failing_ends_the_run",
    "ReplicaFailed": "test_a_replica_that_keeps_failing_ends_the_run",
    "ReplicasDiverged": "test_replicas_that_end_with_different_weights_are_no_success",
}


def _fail_states(states: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, state in states.items():
        if state["Type"] == "Fail":
            yield name
        for part in [state[key] for key in ("ItemProcessor", "Iterator") if key in state]:
            yield from _fail_states(part["States"])
        for branch in state.get("Branches", []):
            yield from _fail_states(branch["States"])


def test_every_fail_state_is_shown_here(deployed: Deployed) -> None:
    assert set(_fail_states(deployed.definition()["States"])) == SHOWN.keys()
    assert set(SHOWN.values()) <= globals().keys()


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ("[1]", "input: must be a JSON object of run parameters, not an array"),
        ("null", "input: must be a JSON object of run parameters, not null"),
        ('"smoke"', "input: must be a JSON object of run parameters, not a string"),
        ('{"n_replicas": 41}', "n_replicas: must be a whole number from 1 to 40, not 41"),
        (
            '{"n_replicas": 1e400}',
            "n_replicas: must be a whole number from 1 to 40, not a number beyond 9007199254740992",
        ),
        (
            '{"Comment": "three at once", "sync_every": 3, "\\u00fc": 1, "batch_size": "4"}',
            'batch_size: must be a whole number from 1 to 65536, not "4"; '
            "total_steps: must be a multiple of sync_every (sync_every=3, total_steps=4): "
            "the run would end with unsent work; \u00fc: no such run parameter",
        ),
        (
            '{"use_spot": true, "max_wait_s": 60, "keep_alive_period_s": 5}',
            "max_runtime_s: must be at most max_wait_s with use_spot (max_runtime_s=86400, max_wait_s=60): "
            "the wait includes the run; keep_alive_period_s: must be at most 0 with use_spot "
            "(keep_alive_period_s=5): SageMaker keeps no spot instance warm",
        ),
    ],
    ids=["array", "null", "string", "bounds", "huge", "all kinds at once", "rules"],
)
def test_wrong_parameters_are_named_with_their_bounds_and_nothing_is_started(
    deployed: Deployed, given: str, cause: str, request: pytest.FixtureRequest
) -> None:
    name = f"invalid-{request.node.callspec.id.replace(' ', '-')}"
    ended = deployed.execute(name, given)
    assert (ended["status"], ended["error"]) == ("FAILED", "InvalidRunParameters")
    assert ended["cause"] == f"{cause}. Nothing was started. {NEW_START}"
    assert deployed.keys(RunLayout(name).log_prefix) == []
    assert deployed.jobs(ended["executionArn"]) == {}


def test_a_name_that_becomes_another_run_s_id_is_refused(deployed: Deployed, toy_run: Any) -> None:
    """An execution may be called what no key may be; cleaned, its name is taken here."""
    before = deployed.read(RunLayout("toy-1").run_file)
    ended = deployed.execute("toy+1", {**TOY, "n_replicas": 3})
    assert (ended["status"], ended["error"]) == ("FAILED", "RunNameTaken")
    assert ended["cause"] == (
        f"There is a run toy-1 in this bucket already; nothing was started. {NEW_START}"
    )
    assert deployed.read(RunLayout("toy-1").run_file) == before
    assert deployed.jobs(ended["executionArn"]) == {}


def test_a_bucket_that_takes_no_run_file_is_said(deployed: Deployed) -> None:
    with deployed.without(deployed.machine_role, "s3:PutObject", on="run.json"):
        ended = deployed.execute("not-recorded", TOY)
    assert (ended["status"], ended["error"]) == ("FAILED", "RunNotRecorded")
    start = (
        f"run.json could not be written to bucket {deployed.bucket}; nothing was started: S3.S3Exception: "
    )
    assert ended["cause"].startswith(start)
    assert "is not authorized to perform: s3:PutObject" in ended["cause"]
    assert ended["cause"].endswith(f"). {NEW_START}")
    assert deployed.jobs(ended["executionArn"]) == {}


def test_a_quota_too_small_is_said_with_both_numbers(deployed: Deployed) -> None:
    ended = deployed.execute("too-many", {**TOY, "n_replicas": 31})
    assert (ended["status"], ended["error"]) == ("FAILED", "QuotaTooSmall")
    assert "ml.m5.xlarge for training job usage is 30, and this run needs 31" in ended["cause"]
    assert ended["cause"].endswith(NEW_START)
    assert deployed.jobs(ended["executionArn"]) == {}


def test_a_replica_that_keeps_failing_ends_the_run(deployed: Deployed) -> None:
    """Relaunched as often as it may; then the peers are told, and their jobs stopped."""
    ended = deployed.execute("broken", {**TOY, "trainer_fn": "broken_rank_1", "max_relaunches": 1})
    arn, reason = ended["executionArn"], "AlgorithmError: RuntimeError: rank 1: out of luck, exit code: 1"
    job = f"broken-{job_hash(arn)}-r1-a1"
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert ended["cause"] == (
        f"rank 1 failed in attempt 2: {reason}. Log: group {LOG_GROUP}, stream {job}/algo-1-*. {NEW_START}"
    )
    assert deployed.job_statuses(arn) == {"r0-a0": "Stopped", "r1-a0": "Failed", "r1-a1": "Failed"}
    jobs = deployed.jobs(arn)
    assert jobs["r1-a1"]["FailureReason"] == reason
    ends = {name: job["SecondaryStatusTransitions"][-1]["StartTime"] for name, job in jobs.items()}
    assert (ends["r0-a0"] - ends["r1-a1"]).total_seconds() < 30  # by the clock of the one that ended them
    assert [line for line in deployed.job_log(job) if line == "RuntimeError: out of"]  # as the Cause says
    marker = json.loads(deployed.read(RunLayout("broken").abort))
    assert marker == {
        "run_id": "broken",
        "rank": 1,
        "round": None,
        "reason": reason,
        "missing": [1],
        "by": "state machine",
    }
    assert deployed.states_entered(arn)[-2:] == ["StopJobs", "ReplicaFailed"]


def test_the_client_reports_a_failed_run_in_the_state_machine_s_words(deployed: Deployed) -> None:
    parameters = {**TOY, "trainer_fn": "broken", "n_replicas": 1, "max_relaunches": 0}
    out = deployed.folder / "runs"
    file = deployed.parameters("failed", parameters)
    done = deployed.runs("start", file, "--name", "failed-1", "--follow", "--out", out)
    report = json.loads((out / "failed-1/report.json").read_text())
    ended = deployed.ended(report["execution_arn"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert (report["status"], report["error"], report["cause"]) == ("FAILED", ended["error"], ended["cause"])
    assert report["replicas"] == [
        {
            "rank": 0,
            "job_name": f"failed-1-{job_hash(report['execution_arn'])}-r0-a0",
            "status": "Failed",
            "attempts": 1,
            "rounds": 0,
            "weights_hash": None,
        }
    ]
    assert f"FAILED: ReplicaFailed: {ended['cause']}" in done.stdout


def test_replicas_that_end_with_different_weights_are_no_success(deployed: Deployed) -> None:
    ended = deployed.execute("flipped", {**TOY, "trainer_fn": "flipped"})
    results = [json.loads(deployed.read(RunLayout("flipped").result(rank))) for rank in (0, 1)]
    first, second = (result["weights_hash"] for result in results)
    assert first != second
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicasDiverged")
    assert ended["cause"] == (
        f"The replicas ended with different weights: rank 0 {first}, rank 1 {second}. {NEW_START}"
    )
    assert deployed.job_statuses(ended["executionArn"]) == {"r0-a0": "Completed", "r1-a0": "Completed"}
