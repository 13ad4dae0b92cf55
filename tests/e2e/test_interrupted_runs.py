"""Runs that somebody interferes with: killed processes, stopped executions, another run beside."""

import json
import os
import signal
from typing import Any

from tests.support.deployed import TOY, Deployed
from trainer.layout import RunLayout, job_hash

# Stays between its two rounds until `go` lies in the run's output.
HELD = {**TOY, "trainer_fn": "held"}


def let_go(deployed: Deployed, name: str) -> None:
    deployed.put(f"{RunLayout(name).output_prefix}/go")


def holds(deployed: Deployed, name: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Every rank's claim, once the first round is committed and all are held before the second."""
    keys = RunLayout(name)
    claims = [deployed.claim(name, rank) for rank in range(ranks)]
    events = [keys.event(0, rank) for rank in range(ranks)]  # written after the round's outer step
    deployed.wait_until(lambda: all(map(deployed.keys, events)), f"every rank of {name} ends its round")
    return claims


def test_a_replica_killed_with_9_is_relaunched_and_catches_up(deployed: Deployed) -> None:
    arn = deployed.start("killed", HELD)
    claims = holds(deployed, "killed")
    os.kill(claims[1]["pid"], signal.SIGKILL)
    again = deployed.claim("killed", 1, number=1)
    assert again["job"] == f"killed-{job_hash(arn)}-r1-a1"
    let_go(deployed, "killed")
    ended = deployed.ended(arn)
    assert ended["status"] == "SUCCEEDED", ended["cause"]
    assert deployed.job_statuses(arn) == {"r0-a0": "Completed", "r1-a0": "Failed", "r1-a1": "Completed"}
    reason = deployed.jobs(arn)["r1-a0"]["FailureReason"]
    assert reason == "AlgorithmError: , exit code: 137 (SIGKILL)"
    summary = json.loads(ended["output"])
    assert [row["attempts"] for row in summary["replicas"]] == [1, 2]
    assert [row["rounds"] for row in summary["replicas"]] == [2, 2]
    assert {row["weights_hash"] for row in summary["replicas"]} == {summary["weights_hash"]}
    # The relaunched process took round 0 from the log, and nothing of its first life was written again.
    contributions = [json.loads(deployed.read(RunLayout("killed").contribution(r, 1))) for r in (0, 1)]
    assert [contribution["claim"] for contribution in contributions] == [0, 1]


def test_stop_execution_ends_every_job(deployed: Deployed) -> None:
    arn = deployed.start("stopped", {**HELD, "n_replicas": 3})
    pids = [deployed.claim("stopped", rank)["pid"] for rank in range(3)]
    deployed.client("stepfunctions").stop_execution(executionArn=arn, cause="enough")
    ended = deployed.ended(arn)
    assert (ended["status"], ended["cause"]) == ("ABORTED", "enough")
    deployed.wait_until(
        lambda: not any(job["TrainingJobStatus"] == "InProgress" for job in deployed.jobs(arn).values()),
        "every job is stopped",
    )
    assert deployed.job_statuses(arn) == {"r0-a0": "Stopped", "r1-a0": "Stopped", "r2-a0": "Stopped"}
    assert not [pid for pid in pids if _is_running(pid)]


def test_two_runs_at_once_do_not_meet(deployed: Deployed, toy_run: Any) -> None:
    """One has the toy's parameters and must end with the toy's weights, the other's being there or not."""
    others = {"left": HELD, "right": {**HELD, "outer_lr": 0.5}}
    arns = {name: deployed.start(name, given) for name, given in others.items()}
    for name, arn in arns.items():
        claims = holds(deployed, name)  # so all four run at once
        assert [claim["job"] for claim in claims] == [f"{name}-{job_hash(arn)}-r{rank}-a0" for rank in (0, 1)]
    for name in others:
        let_go(deployed, name)
    summaries = {name: json.loads(deployed.ended(arn)["output"]) for name, arn in arns.items()}
    assert summaries["left"]["weights_hash"] == toy_run.report["replicas"][0]["weights_hash"]
    assert summaries["right"]["weights_hash"] != summaries["left"]["weights_hash"]
    for name in others:
        assert _without_times(deployed.keys(RunLayout(name).log_prefix), name) == _without_times(
            deployed.keys(RunLayout("toy-1").log_prefix), "toy-1"
        )


def test_a_second_start_under_a_name_is_refused_in_words(deployed: Deployed, toy_run: Any) -> None:
    file = deployed.parameters("second", {**TOY, "outer_lr": 0.5})
    done = deployed.runs("start", file, "--name", "toy-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "NameTaken: there has been a run toy-1; choose another name\n"


def _without_times(keys: list[str], name: str) -> list[str]:
    """Keys of a log below its prefix; whose initial weights stand is a matter of who came first."""
    below = [key.removeprefix(RunLayout(name).log_prefix) for key in keys]
    return [key for key in below if not key.endswith(".safetensors")]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
