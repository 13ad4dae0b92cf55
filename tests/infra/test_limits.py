"""The largest run there may be, against what Step Functions takes of one execution.

25,000 events of history, and 256 KiB between two states ("Step Functions service quotas").
"""

import json
from collections.abc import Callable
from typing import Any

from infra.quota_states import MOST_PAGES
from infra.replica_states import MOST_REFUSALS
from infra.training_job_state import JOB_NAME_CHARACTERS
from trainer.job_parameters import MAX_REPLICAS
from trainer.run_spec import RunSpec

Evaluate = Callable[..., Any]
States = dict[str, dict[str, Any]]

MOST_EVENTS = 25_000
MOST_BYTES = 256 * 1024
ATTEMPTS = 11  # max_relaunches is 10 at most

WIDE = "\N{GRINNING FACE}"


def _result(rank: int) -> dict[str, Any]:
    """What ReadResult leaves of a replica, each member as long as it can be."""
    return {
        "rank": rank, "status": "Completed", "attempts": ATTEMPTS, "job_name": "j" * JOB_NAME_CHARACTERS,
        "instance_type": "ml." + "x" * 80, "billable_s": 2_419_200 * ATTEMPTS,
        "model_uri": f"s3://{'b' * 63}/diloco-out/{'r' * 80}/model", "weights_hash": "f" * 64,
        "rounds": 10_000_000, "first_loss": 1.2345678901234567e-300, "last_loss": 1.2345678901234567e-300,
        "bigram_loss": 1.2345678901234567e-300,
    }  # fmt: skip


def test_forty_replicas_with_the_longest_names_stay_far_below_256_kib(
    states: States, evaluate: Evaluate
) -> None:
    replicas = [_result(rank) for rank in range(MAX_REPLICAS)]
    context = {"run_id": "r" * 80, "replicas": replicas, "parameters": {"n_replicas": MAX_REPLICAS}}
    summary = evaluate(states["Summary"]["Output"], **context)
    assert summary["billable_s"] == 2_419_200 * ATTEMPTS * MAX_REPLICAS
    for passed_on in (replicas, summary):
        assert len(json.dumps(passed_on).encode()) < MOST_BYTES / 8
    # run.json's body, the parameters, is written and kept as a variable.
    longest = {
        name: field.get("maxLength", 20)
        for name, field in RunSpec.model_json_schema()["properties"].items()
        if field["type"] == "string"
    }
    assert sum(longest.values()) * len(WIDE.encode()) < MOST_BYTES / 4


# Events of a state without a task; of a task, besides: scheduled, started, ended (.sync: "submitted" too).
ENTER_AND_EXIT = 2
CALL = ENTER_AND_EXIT + 3
SYNC = ENTER_AND_EXIT + 4
ITERATION = 2  # of a Map: started, ended


def _top(states: States) -> int:
    """Everything outside the Maps, and both lists of quotas as long as may be."""
    return len(states) * CALL + 2 * MOST_PAGES * (CALL + ENTER_AND_EXIT)


def _attempt(refusals: int) -> int:
    """NameJob, TrainReplica, Relaunch?, MarkRelaunching, Pause, NextAttempt; a refusal adds four states."""
    refused = SYNC + len(["Throttled?", "CountRefusal", "BackOff"]) * ENTER_AND_EXIT
    return SYNC + CALL + 4 * ENTER_AND_EXIT + refusals * refused


def _stop(tries: int) -> int:
    return ITERATION + CALL + 3 * (tries - 1) + ENTER_AND_EXIT


def test_forty_replicas_that_fail_in_every_attempt_stay_below_25_000_events(states: States) -> None:
    replica = ITERATION + 3 * CALL + ATTEMPTS * _attempt(refusals=0)
    jobs = MAX_REPLICAS * ATTEMPTS
    assert _top(states) + MAX_REPLICAS * replica + jobs * _stop(tries=1) < MOST_EVENTS / 1.5


def test_so_do_forty_that_are_throttled_as_often_as_may_be_in_each_of_three_attempts(states: States) -> None:
    """With eleven attempts throttled ten times each it would be 60,000: hours of nothing but refusals."""
    attempts = RunSpec.model_validate({}).max_relaunches + 1
    (retry,) = states["StopJob"]["Retry"]
    replica = ITERATION + 3 * CALL + attempts * _attempt(refusals=MOST_REFUSALS)
    stopped = MAX_REPLICAS * attempts * _stop(tries=retry["MaxAttempts"] + 1)
    assert _top(states) + MAX_REPLICAS * replica + stopped < MOST_EVENTS
