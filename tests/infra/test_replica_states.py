"""What the state machine makes of the ways in which a training job can fail."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.replica_states import FINAL_EXIT_CODES, KILLED_HINT, NOT_WORTH_A_RELAUNCH, REDRIVE_REFUSED
from trainer import failures

Evaluate = Callable[..., Any]
States = dict[str, dict[str, Any]]


def _caught(states: States, evaluate: Evaluate, error: str, cause: str | None) -> dict[str, Any]:
    """What the catcher that takes `error` assigns."""
    catcher = next(
        catcher
        for catcher in states["TrainReplica"]["Catch"]
        if {error, "States.ALL"} & set(catcher["ErrorEquals"])
    )
    error_output = {"Error": error} | ({} if cause is None else {"Cause": cause})
    assigned = evaluate(catcher["Assign"], error=error_output, billable_s=60)
    return {**assigned, "next": catcher["Next"]}


def _failed_job(reason: str | None) -> str:
    job = {"TrainingJobName": "x", "TrainingJobStatus": "Failed"}
    return json.dumps(job if reason is None else job | {"FailureReason": reason})


@pytest.mark.parametrize(
    ("reason", "repeatable"),
    [
        ("AlgorithmError: PeerLost: rank 0 lost rank 1, exit code: 15", False),
        ("PeerLost: rank 0 lost rank 1", False),
        ("AlgorithmError: BadDataSet: rank 0: no files, exit code: 11", False),
        ("AlgorithmError: StoreFailed: rank 0: PeerLost: is not at the beginning", True),
        ("AlgorithmError: , exit code: 15", False),
        ("AlgorithmError: , exit code: 1", True),
        ("AlgorithmError: , exit code: 22", True),
        ("AlgorithmError: , exit code: 137 and more", True),
        ("ClientError: Data download failed:No S3 objects found under S3 URL", False),
        ("ClientError: Cannot pull image: it has no such image", False),
        ("ClientError: Please use an instance type with more memory, exit code: 137", True),
        ("CapacityError: Unable to provision requested ML compute capacity", True),
        ("InternalServerError: try again", True),
        ('AlgorithmError: ValueError: rank 1: "quoted" \\ and\nbroken', True),
        ("AlgorithmError: ValueError: rank 1: C:\\new in 9 \N{MICRO SIGN}s \N{GRINNING FACE}", True),
        (None, True),
    ],
)
def test_a_failed_job_is_relaunched_unless_it_would_fail_alike(
    reason: str | None, repeatable: bool, states: States, evaluate: Evaluate
) -> None:
    caught = _caught(states, evaluate, "States.TaskFailed", _failed_job(reason))
    assert caught["repeatable"] is repeatable
    assert caught["next"] == "Relaunch?"
    shown = (reason or "its training job ended as Failed").replace("\n", " ")
    assert caught["failure"].removesuffix(KILLED_HINT) == shown


def test_a_killed_container_is_explained(states: States, evaluate: Evaluate) -> None:
    """It had no time to say why, and 137 says nothing to most people."""
    caught = _caught(states, evaluate, "States.TaskFailed", _failed_job("AlgorithmError: , exit code: 137"))
    assert caught["failure"] == f"AlgorithmError: , exit code: 137{KILLED_HINT}"
    assert caught["repeatable"] is True
    assert "out of memory: take a larger instance_type" in KILLED_HINT


@pytest.mark.parametrize(
    "cause",
    [
        "no JSON",
        "",
        None,
        '{"cut off',
        '{"FailureReason": 3}',
        "[]",
        "x" * 40_000,
        '"FailureReason": "two\nlines"',
        r'"FailureReason": "\x"',
        r'"FailureReason": "\u12"',
    ],
)
@pytest.mark.parametrize(
    "error", ["States.TaskFailed", "States.Runtime", "SageMaker.AmazonSageMakerException"]
)
def test_no_cause_whatever_makes_the_catcher_throw(
    error: str, cause: str | None, states: States, evaluate: Evaluate
) -> None:
    """A throw inside a Catch ends the execution with an error that says nothing of the replica."""
    caught = _caught(states, evaluate, error, cause)
    assert error in caught["failure"]
    assert len(caught["failure"]) < 1200


def test_a_refused_creation_is_no_failed_job(states: States, evaluate: Evaluate) -> None:
    cause = "User is not authorized (Service: AmazonSageMaker; Error Code: AccessDeniedException)"
    caught = _caught(states, evaluate, "SageMaker.AmazonSageMakerException", cause)
    assert caught["next"] == "Throttled?"
    assert caught["failure"].endswith(cause)


@pytest.mark.parametrize(
    ("cause", "refusals", "asked_again"),
    [
        ("Rate exceeded (Error Code: ThrottlingException)", 0, True),
        ("Rate exceeded (Error Code: ThrottlingException)", 10, False),
        ("not authorized (Error Code: AccessDeniedException)", 0, False),
    ],
)
def test_only_throttling_is_asked_again(
    cause: str, refusals: int, asked_again: bool, states: States, evaluate: Evaluate
) -> None:
    (choice,) = states["Throttled?"]["Choices"]
    assert choice["Next"] == "CountRefusal"
    assert states["Throttled?"]["Default"] == "WriteAbortMarker"
    assert evaluate(choice["Condition"], failure=cause, refusals=refusals) is asked_again


def test_pauses_are_whole_seconds_within_their_bounds(states: States, evaluate: Evaluate) -> None:
    for refusals in range(1, 11):
        pause = evaluate(states["BackOff"]["Seconds"], refusals=refusals)
        assert 0 <= pause <= min(2**refusals, 60)
        assert pause == int(pause)
    assert evaluate(states["Pause"]["Seconds"], failure="RuntimeError: x") == 0
    assert 60 <= evaluate(states["Pause"]["Seconds"], failure="CapacityError: none") <= 180


@pytest.mark.parametrize(
    ("repeatable", "attempt", "relaunched"), [(True, 0, True), (True, 2, False), (False, 0, False)]
)
def test_a_rank_is_relaunched_at_most_max_relaunches_times(
    repeatable: bool, attempt: int, relaunched: bool, states: States, evaluate: Evaluate
) -> None:
    (choice,) = states["Relaunch?"]["Choices"]
    answer = evaluate(
        choice["Condition"], repeatable=repeatable, attempt=attempt, parameters={"max_relaunches": 2}
    )
    assert answer is relaunched
    assert [choice["Next"], states["Relaunch?"]["Default"]] == ["MarkRelaunching", "WriteAbortMarker"]
    assert states["MarkRelaunching"]["Next"] == "Pause"
    assert states["Pause"]["Next"] == "NextAttempt"
    assert states["NextAttempt"]["Next"] == "NameJob"
    assert evaluate(states["NextAttempt"]["Assign"], attempt=1, refusals=3) == {"attempt": 2, "refusals": 0}


@pytest.mark.parametrize(("status", "done"), [("Completed", True), ("Stopped", False), ("Stopping", False)])
def test_only_a_completed_job_has_finished(
    status: str, done: bool, states: States, evaluate: Evaluate
) -> None:
    result = {"TrainingJobStatus": status, "SecondaryStatus": status, "More": 1}
    assigned = evaluate(states["TrainReplica"]["Assign"], result=result, billable_s=0)
    (choice,) = states["JobCompleted?"]["Choices"]
    assert evaluate(choice["Condition"], **assigned) is done
    assert [choice["Next"], states["JobCompleted?"]["Default"]] == ["ReadResult", "NotCompleted"]


@pytest.mark.parametrize(
    ("ending", "said"), [("Stopped", "Stopped"), ("MaxRuntimeExceeded", "Stopped (MaxRuntimeExceeded)")]
)
def test_a_stopped_job_is_a_failure_that_is_not_repeated(
    ending: str, said: str, states: States, evaluate: Evaluate
) -> None:
    """A person meant it, and a limit would be reached again: max_runtime_s bounds what a run can cost."""
    result = {"TrainingJobStatus": "Stopped", "SecondaryStatus": ending}
    assigned = evaluate(states["TrainReplica"]["Assign"], result=result, billable_s=0)
    assert evaluate(states["NotCompleted"]["Assign"], **assigned) == {
        "failure": f"its training job ended as {said}",
        "repeatable": False,
    }
    assert states["NotCompleted"]["Next"] == "Relaunch?"


def test_billed_seconds_of_failed_attempts_are_counted_too(states: States, evaluate: Evaluate) -> None:
    failed = json.dumps({"BillableTimeInSeconds": 30, "TrainingJobStatus": "Failed"})
    assert _caught(states, evaluate, "States.TaskFailed", failed)["billable_s"] == 90
    # A job that never got an instance has none, and a refused creation no job.
    assert _caught(states, evaluate, "States.TaskFailed", _failed_job("CapacityError: x"))["billable_s"] == 60
    assign = states["TrainReplica"]["Assign"]["billable_s"]
    assert evaluate(assign, result={"BillableTimeInSeconds": 5}, billable_s=90) == 95
    assert evaluate(assign, result={}, billable_s=90) == 90


def test_relaunching_restarts_the_ranks_clock_and_giving_up_leaves_a_marker(
    states: States, evaluate: Evaluate
) -> None:
    run = {"bucket": "b", "run_id": "run", "rank": 3, "attempt": 0, "failure": "f" * 2000}
    progress = evaluate(states["MarkRelaunching"]["Arguments"], **run)
    assert progress["Key"] == "diloco-rdv/run/progress/rank_0003.json"
    assert progress["Body"] == {"run_id": "run", "rank": 3, "state": "relaunching", "attempt": 1}
    assert "IfNoneMatch" not in progress
    abort = evaluate(states["WriteAbortMarker"]["Arguments"], **run)
    assert abort["Key"] == "diloco-rdv/run/abort.json"
    assert abort["IfNoneMatch"] == "*"
    assert abort["Body"] == {
        "run_id": "run",
        "rank": 3,
        "round": None,
        "reason": "f" * 1024,
        "missing": [3],
        "by": "state machine",
    }
    # Somebody's earlier marker stands, and a bucket that refuses must not hide the failure.
    for name in ("MarkRelaunching", "WriteAbortMarker"):
        assert [c["ErrorEquals"] for c in states[name]["Catch"]] == [["States.ALL"]]


def test_the_cause_of_a_given_up_run_names_rank_reason_and_log(states: States, evaluate: Evaluate) -> None:
    cause = evaluate(
        states["GiveUp"]["Cause"], rank=3, attempt=2, failure="ValueError: rank 3: no", job_name="n-r3-a2"
    )
    assert cause == (
        "rank 3 failed in attempt 3: ValueError: rank 3: no. Log: group /aws/sagemaker/TrainingJobs, "
        f"stream n-r3-a2/algo-1-*. {REDRIVE_REFUSED}"
    )
    assert states["GiveUp"]["Error"] == "ReplicaFailed"


def test_errors_not_worth_a_relaunch_are_those_the_trainer_says() -> None:
    final = [kind.__name__ for kind, ending in failures.ENDINGS.items() if not ending.relaunch]
    assert sorted(NOT_WORTH_A_RELAUNCH) == sorted(final)


def test_exit_codes_not_worth_a_relaunch_are_those_the_trainer_says() -> None:
    """Exit code 0 is a stopped job's, which SageMaker doesn't call failed."""
    final = {ending.exit_code for ending in failures.ENDINGS.values() if not ending.relaunch}
    assert final == {0, *FINAL_EXIT_CODES}
    may_heal = {ending.exit_code for ending in failures.ENDINGS.values() if ending.relaunch}
    assert not may_heal & set(FINAL_EXIT_CODES)
