"""The largest run there may be, against what Step Functions takes of one execution.

25,000 events of history, and 256 KiB between two states ("Step Functions service quotas").
"""

import json
from collections.abc import Callable
from typing import Any

from infra.quota_states import MOST_PAGES
from infra.replica_states import MOST_REFUSALS
from infra.training_job_state import JOB_NAME_CHARACTERS
from trainer.run_spec import MAX_REPLICAS, RunSpec

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


def test_forty_replicas_that_fail_in_every_attempt_stay_below_25_000_events(states: States) -> None:
    """An upper bound: whatever can be repeated, is, as often as it may be; then all jobs are stopped."""
    (retry,) = states["TrainReplica"]["Retry"]
    # Refusals are counted for an attempt; each costs another entry into TrainReplica and its three states.
    tries = retry["MaxAttempts"] + 1
    enter_and_exit = 2
    task = enter_and_exit + 3 * tries  # scheduled, started, failed: each time
    attempt = (
        enter_and_exit
        * len(["NameJob", "Relaunch?", "Pause", "NextAttempt", "JobCompleted?", "NotCompleted"])
        + enter_and_exit
        + 3  # MarkRelaunching
        + task
        + MOST_REFUSALS * (enter_and_exit * len(["Throttled?", "CountRefusal", "BackOff", "Train"]) + 3)
    )
    replica = 3 + enter_and_exit * len(["Replica", "GiveUp", "ReadResult"]) + 2 * 3 + ATTEMPTS * attempt
    (stop_retry,) = states["StopJob"]["Retry"]
    stop = 3 + 2 * enter_and_exit + 3 * (stop_retry["MaxAttempts"] + 1)
    realistic_stop = 3 + 2 * enter_and_exit + 3
    top = 60 + 2 * MOST_PAGES * (2 * enter_and_exit + 3)
    # Every replica fails in all attempts without ever being throttled...
    plain = attempt - task - MOST_REFUSALS * 11 + enter_and_exit + 4
    failing = MAX_REPLICAS * (3 + 12 + ATTEMPTS * plain) + MAX_REPLICAS * ATTEMPTS * realistic_stop
    assert top + failing < MOST_EVENTS
    # ... and a run of the default two relaunches may meet every refusal there is on top of that.
    default = RunSpec.model_validate({}).max_relaunches + 1
    worst = replica - (ATTEMPTS - default) * attempt
    assert top + MAX_REPLICAS * (worst + default * stop) < MOST_EVENTS
