"""Runs whose jobs are killed, taken back, starved of capacity or throttled, on the deployed state machine."""

import json
import os
import signal
from typing import Any

import pytest

from tests.e2e.test_interrupted_runs import HELD, holds, let_go
from tests.support.deployed import TOY, Deployed
from tests.support.trainers import HELD_ROUND
from trainer.layout import RunLayout, job_hash

# The default trainer on its tiny model, in six rounds; held before the fourth.
TRAINING = {
    "trainer_module": "tests.support.trainers",
    "trainer_fn": "held_training",
    "n_replicas": 3,
    "total_steps": 12,
    "poll_interval_s": 0.05,
    "seed": 7,
}


WHOLE = ("index.json", "state.json", "tensors.safetensors")  # the files of a checkpoint


def held_in_round(deployed: Deployed, name: str, round_index: int, ranks: int) -> list[dict[str, Any]]:
    """Every rank's claim, once the round before is applied everywhere, and the checkpoint of it copied."""
    keys = RunLayout(name)
    claims = [deployed.claim(name, rank) for rank in range(ranks)]
    events = [keys.event(round_index - 1, rank) for rank in range(ranks)]
    deployed.wait_until(lambda: all(map(deployed.keys, events)), f"{name} comes to round {round_index}")
    files = [
        f"{keys.checkpoint_prefix(r)}/round_{round_index:06d}.c0/{f}" for r in range(ranks) for f in WHOLE
    ]
    deployed.wait_until(lambda: all(map(deployed.keys, files)), f"{name}'s checkpoints are in the bucket")
    return claims


def succeeded(deployed: Deployed, arn: str) -> dict[str, Any]:
    """An execution's summary, whose replicas agree."""
    ended = deployed.ended(arn)
    assert ended["status"] == "SUCCEEDED", ended.get("cause")
    summary: dict[str, Any] = json.loads(ended["output"])
    assert {row["weights_hash"] for row in summary["replicas"]} == {summary["weights_hash"]}
    return summary


@pytest.fixture(scope="module")
def undisturbed(deployed: Deployed) -> str:
    """The hash of the weights that the same run ends with when it is left alone."""
    let_go(deployed, "undisturbed")
    summary = succeeded(deployed, deployed.start("undisturbed", TRAINING))
    weights_hash: str = summary["weights_hash"]
    return weights_hash


def test_rank_2_killed_with_9_in_round_3_comes_back_as_a_job_of_its_own(
    deployed: Deployed, undisturbed: str
) -> None:
    arn = deployed.start("killed-2", TRAINING)
    claims = held_in_round(deployed, "killed-2", HELD_ROUND, ranks=3)
    os.kill(claims[2]["pid"], signal.SIGKILL)
    again = deployed.claim("killed-2", 2, number=1)
    assert again["job"] == f"killed-2-{job_hash(arn)}-r2-a1"
    let_go(deployed, "killed-2")
    summary = succeeded(deployed, arn)
    assert [row["attempts"] for row in summary["replicas"]] == [1, 1, 2]
    assert [row["rounds"] for row in summary["replicas"]] == [6, 6, 6]
    assert summary["weights_hash"] == undisturbed
    jobs = deployed.jobs(arn)
    assert {name: job["TrainingJobStatus"] for name, job in jobs.items()} == {
        "r0-a0": "Completed", "r1-a0": "Completed", "r2-a0": "Failed", "r2-a1": "Completed",
    }  # fmt: skip
    places = [jobs[name]["CheckpointConfig"]["S3Uri"] for name in ("r2-a0", "r2-a1")]
    assert places == [f"s3://{deployed.bucket}/diloco-ckpt/killed-2/rank_0002"] * 2


@pytest.mark.parametrize("sigterm", [True, False], ids=["asked", "killed"])
def test_a_spot_instance_taken_back_costs_no_attempt(
    deployed: Deployed, undisturbed: str, sigterm: bool
) -> None:
    """SageMaker starts the job again under its name; the state machine hears nothing of it."""
    name = f"spot-{'asked' if sigterm else 'killed'}"
    arn = deployed.start(name, {**TRAINING, "n_replicas": 3, "use_spot": True})
    claims = held_in_round(deployed, name, HELD_ROUND, ranks=3)
    deployed.bring(f"{name}-*-r1-a0", "interrupted", sigterm=sigterm)
    again = deployed.claim(name, 1, number=1)
    assert again["job"] == claims[1]["job"] == f"{name}-{job_hash(arn)}-r1-a0"
    assert again["pid"] != claims[1]["pid"]
    let_go(deployed, name)
    summary = succeeded(deployed, arn)
    assert summary["weights_hash"] == undisturbed
    assert [row["attempts"] for row in summary["replicas"]] == [1, 1, 1]
    job = deployed.jobs(arn)["r1-a0"]
    assert job["EnableManagedSpotTraining"] is True
    assert [transition["Status"] for transition in job["SecondaryStatusTransitions"]] == [
        "Starting", "Downloading", "Training", "Interrupted",
        "Starting", "Downloading", "Training", "Uploading", "Completed",
    ]  # fmt: skip


def test_a_relaunch_outlasts_throttling_a_lack_of_capacity_and_a_late_start(deployed: Deployed) -> None:
    """Rank 1 loses its host; the next job is throttled, then starved; the one after starts late."""
    name = "starved"
    deployed.bring(f"{name}-*-r1-a1", "throttled", times=2)
    deployed.bring(f"{name}-*-r1-a1", "no_capacity")
    deployed.bring(f"{name}-*-r1-a2", "delayed_start", wait_s=2)
    arn = deployed.start(name, HELD)
    holds(deployed, name)
    deployed.bring(f"{name}-*-r1-a0", "host_lost")
    assert deployed.claim(name, 1, number=1)["job"] == f"{name}-{job_hash(arn)}-r1-a2"
    let_go(deployed, name)
    summary = succeeded(deployed, arn)
    assert [row["attempts"] for row in summary["replicas"]] == [1, 3]
    jobs = deployed.jobs(arn)
    assert jobs["r1-a0"]["FailureReason"].startswith("InternalServerError: We encountered an internal error")
    assert jobs["r1-a1"]["FailureReason"].startswith("CapacityError: Unable to provision")
    (second, third) = (jobs[attempt]["TrainingJobName"] for attempt in ("r1-a1", "r1-a2"))
    assert [deployed.happened(second, "throttled"), deployed.happened(third, "delayed_start")] == [2, 1]


def test_a_throttled_start_of_every_replica_only_takes_longer(deployed: Deployed) -> None:
    deployed.bring("throttled-*", "throttled", times=5)
    ended = deployed.execute("throttled", TOY)
    assert ended["status"] == "SUCCEEDED", ended.get("cause")
    assert deployed.happened("throttled-", "throttled") == 5
    assert deployed.job_statuses(ended["executionArn"]) == {"r0-a0": "Completed", "r1-a0": "Completed"}


def test_a_job_stopped_by_hand_is_not_started_again(deployed: Deployed) -> None:
    arn = deployed.start("by-hand", HELD)
    (_, claim) = holds(deployed, "by-hand")
    deployed.client("sagemaker").stop_training_job(TrainingJobName=claim["job"])
    ended = deployed.ended(arn)
    assert (ended["status"], ended["error"]) == ("FAILED", "ReplicaFailed")
    assert ended["cause"].startswith("rank 1 failed in attempt 1: its training job ended as Stopped. Log: ")
    assert deployed.job_statuses(arn) == {"r0-a0": "Stopped", "r1-a0": "Stopped"}


@pytest.mark.parametrize("mode", ["file", "fastfile"])
def test_a_data_set_comes_in_its_channel(deployed: Deployed, mode: str) -> None:
    for key in ("a.txt", "more/b.txt"):
        deployed.put(f"diloco-in/{mode}/{key}", b"text")
    deployed.put(f"diloco-in/{mode}-too/c.txt", b"another's")
    given = {**TOY, "trainer_fn": "tells_its_data", "dataset_uri": f"diloco-in/{mode}", "input_mode": mode}
    ended = deployed.execute(f"in-{mode}", {**given, "n_replicas": 1})
    assert ended["status"] == "SUCCEEDED", ended.get("cause")
    result = json.loads(deployed.read(RunLayout(f"in-{mode}").result(0)))
    assert result["dataset_uri"].endswith("/input/data/data")
    assert result["files"] == ["a.txt", "more/b.txt"]
