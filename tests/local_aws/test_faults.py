"""Faults on request, as DescribeTrainingJob and S3 show them."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from local_aws import faults
from local_aws.environment import DEFAULT_VENV
from local_aws.faults import Fault, Faults

SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
}

# The first process of a job leaves a checkpoint and stays, adding a last word when asked to leave; the second
# says what it finds and ends. 512 characters are the most that a variable of a job's environment holds.
STAYS_ONCE = """
import pathlib, signal, sys, time
file = pathlib.Path(base, 'checkpoints/words')
found = file.read_text() if file.exists() else ''
print(f'found [{found}]')
def leave(*_):
    file.write_text('first, last')
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
if not found:
    part = pathlib.Path(base, 'part')
    part.write_text('first')
    part.rename(file)
while not found:
    time.sleep(0.02)
"""


@pytest.fixture(scope="session")
def checkpoint_role(account: Any) -> str:
    return account.job_role(
        account.allow("s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject"),
        account.allow(
            "logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"
        ),
    )


def request_of(account: Any, role: str, code: str, **changes: Any) -> dict[str, Any]:
    """A job of Python code, with a place of its own for checkpoints."""
    request = account.python_job(role, code, **changes)
    request["CheckpointConfig"] = {"S3Uri": f"s3://{account.bucket}/ckpt/{request['TrainingJobName']}"}
    return request  # type: ignore[no-any-return]


def bring(account: Any, job: str, fault: str, **more: Any) -> None:
    faults.add(account.settings.faults_file, Fault(job, fault, **more))


def copied(account: Any, name: str) -> dict[str, str]:
    """A job's checkpoints in S3: text by name."""
    s3, prefix = account.client("s3"), f"ckpt/{name}/"
    listed = s3.list_objects_v2(Bucket=account.bucket, Prefix=prefix).get("Contents", [])
    return {
        entry["Key"].removeprefix(prefix): s3.get_object(Bucket=account.bucket, Key=entry["Key"])["Body"]
        .read()
        .decode()
        for entry in listed
    }


def wait_for_copy(account: Any, name: str, wanted: dict[str, str]) -> None:
    account.wait_until(lambda: copied(account, name) == wanted, f"the checkpoints of {name} are {wanted}")


def passed(job: dict[str, Any]) -> list[str]:
    return [transition["Status"] for transition in job["SecondaryStatusTransitions"]]


def test_changes_and_deletions_are_copied_while_a_job_runs_and_at_its_end(
    account: Any, checkpoint_role: str
) -> None:
    code = (
        "import pathlib, time; folder = pathlib.Path(base, 'checkpoints'); (folder / 'round_1').mkdir()\n"
        "(folder / 'round_1/index').write_text('one'); (folder / 'kept').write_text('a')\n"
        "while not (folder / 'kept').read_text() == 'a' or not pathlib.Path(os.environ['GO']).exists():\n"
        "    time.sleep(0.02)\n"
        "(folder / 'round_1/index').unlink(); (folder / 'kept').write_text('ab')\n"
        "(folder / 'last').write_text('z')"
    )
    go = Path(account.settings.state_dir) / account.unique("go")
    request = request_of(account, checkpoint_role, code, Environment={"GO": str(go)})
    name = account.start_job(request)
    wait_for_copy(account, name, {"round_1/index": "one", "kept": "a"})
    go.touch()
    assert account.ended_job(name)["TrainingJobStatus"] == "Completed"
    assert copied(account, name) == {"kept": "ab", "last": "z"}


def test_a_job_finds_the_checkpoints_of_the_one_before_and_nobody_elses(
    account: Any, checkpoint_role: str
) -> None:
    prefix = account.unique("rank")
    for key, text in ((f"{prefix}/round/a", "mine"), (f"{prefix}0/round/b", "another's")):
        account.client("s3").put_object(Bucket=account.bucket, Key=key, Body=text.encode())
    code = (
        "import pathlib; folder = pathlib.Path(base, 'checkpoints')\n"
        "print([(str(p.relative_to(folder)), p.read_text()) for p in folder.rglob('*') if p.is_file()])"
    )
    request = account.python_job(checkpoint_role, code)
    request["CheckpointConfig"] = {"S3Uri": f"s3://{account.bucket}/{prefix}"}
    assert account.run_job(request)["TrainingJobStatus"] == "Completed"
    assert account.job_log(request["TrainingJobName"]) == ["[('round/a', 'mine')]"]


def test_a_role_that_may_not_delete_checkpoints_fails_its_job(account: Any, job_role: str) -> None:
    code = (
        "import pathlib, time; file = pathlib.Path(base, 'checkpoints/a'); file.write_text('x')\n"
        "while not pathlib.Path(os.environ['GO']).exists(): time.sleep(0.02)\n"
        "file.unlink()"
    )
    go = Path(account.settings.state_dir) / account.unique("go")
    name = account.start_job(request_of(account, job_role, code, Environment={"GO": str(go)}))
    wait_for_copy(account, name, {"a": "x"})
    go.touch()
    reason = account.ended_job(name)["FailureReason"]
    assert reason.startswith("ClientError: Artifact upload failed:Checkpoints: ")
    assert "AccessDenied" in reason
    assert "DeleteObject" in reason


@pytest.mark.parametrize(
    ("sigterm", "left_behind"), [(True, "first, last"), (False, "first")], ids=["asked", "killed"]
)
def test_a_spot_job_whose_instance_is_taken_back_starts_again_under_its_name(
    account: Any, checkpoint_role: str, sigterm: bool, left_behind: str
) -> None:
    """It finds what its first process had left; last words are copied where it was asked to leave."""
    name = account.start_job(request_of(account, checkpoint_role, STAYS_ONCE, **SPOT))
    wait_for_copy(account, name, {"words": "first"})
    bring(account, name, "interrupted", sigterm=sigterm)
    job = account.ended_job(name)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert passed(job) == [
        "Starting", "Downloading", "Training", "Interrupted",
        "Starting", "Downloading", "Training", "Uploading", "Completed",
    ]  # fmt: skip
    assert account.job_log(name) == ["found []", f"found [{left_behind}]"]


def test_a_job_on_no_spot_instance_can_t_be_interrupted(account: Any, checkpoint_role: str) -> None:
    """A fault that could not happen must not pass in silence."""
    name = account.start_job(request_of(account, checkpoint_role, STAYS_ONCE))
    bring(account, name, "interrupted")
    reason = account.ended_job(name)["FailureReason"]
    assert reason.startswith(f"InternalServerError: {name} runs on no spot instance")


def test_an_interrupted_job_can_be_stopped_before_it_starts_again(account: Any, checkpoint_role: str) -> None:
    name = account.start_job(request_of(account, checkpoint_role, STAYS_ONCE, **SPOT))
    wait_for_copy(account, name, {"words": "first"})
    bring(account, name, "interrupted", wait_s=600)
    sagemaker = account.client("sagemaker")
    account.wait_until(
        lambda: sagemaker.describe_training_job(TrainingJobName=name)["SecondaryStatus"] == "Interrupted",
        "the job is interrupted",
    )
    sagemaker.stop_training_job(TrainingJobName=name)
    job = account.ended_job(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert passed(job).count("Training") == 1


def test_a_spot_job_is_given_up_when_it_has_waited_too_long(account: Any, checkpoint_role: str) -> None:
    times = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}
    request = request_of(account, checkpoint_role, STAYS_ONCE, **{**SPOT, "StoppingCondition": times})
    bring(account, request["TrainingJobName"], "delayed_start", wait_s=600)
    job = account.run_job(request)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")
    assert "Training" not in passed(job)


def test_a_host_that_vanishes_fails_its_job_and_copies_nothing_more(account: Any) -> None:
    """Its role may not write: one more try to copy would be the reason of the failure."""
    role = account.job_role(
        account.allow("s3:GetObject", "s3:ListBucket"),
        account.allow("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"),
    )
    code = (
        "import pathlib, subprocess, time; child = subprocess.Popen(['sleep', '600'])\n"
        "pathlib.Path(base, 'checkpoints/unsaved').write_text('x'); print(child.pid); time.sleep(600)"
    )
    name = account.start_job(request_of(account, role, code))
    (line,) = account.wait_until(lambda: account.job_log(name), "the job says what it started")
    bring(account, name, "host_lost")
    job = account.ended_job(name)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"] == "InternalServerError: We encountered an internal error. Please try again."
    assert not account.is_running(int(line))
    assert copied(account, name) == {}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_torn_copy_leaves_the_index_of_a_checkpoint_without_all_its_files(
    account: Any, checkpoint_role: str, seed: int
) -> None:
    code = (
        "import pathlib, time; made = pathlib.Path(base, 'made'); made.mkdir()\n"
        "for number, name in enumerate(('weights', 'optimizer', 'position', 'index')):\n"
        "    (made / name).write_text(name); os.utime(made / name, ns=(number, number))\n"
        "made.rename(pathlib.Path(base, 'checkpoints/round_1')); time.sleep(600)"
    )
    request = request_of(account, checkpoint_role, code)
    name = request["TrainingJobName"]
    bring(account, name, "torn_sync", seed=seed)
    account.start_job(request)
    account.wait_until(lambda: copied(account, name), "something is copied")
    bring(account, name, "host_lost")
    account.ended_job(name)
    found = copied(account, name)
    assert "round_1/index" in found
    assert 1 <= len(found) <= 3


def test_a_start_may_take_its_time_and_is_not_billed_for_it(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "true")
    bring(account, request["TrainingJobName"], "delayed_start", wait_s=3)
    job = account.run_job(request)
    assert passed(job)[:3] == ["Starting", "Starting", "Downloading"]
    assert job["SecondaryStatusTransitions"][1]["StatusMessage"].startswith("Insufficient capacity error")
    waited = (job["TrainingStartTime"] - job["CreationTime"]).total_seconds()
    assert waited >= 3


def test_a_job_without_capacity_fails_before_it_trains(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "true")
    bring(account, request["TrainingJobName"], "no_capacity")
    job = account.run_job(request)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("CapacityError: Unable to provision requested ML compute capacity")
    assert "BillableTimeInSeconds" not in job


def test_a_throttled_creation_creates_nothing_and_may_be_tried_again(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "true")
    bring(account, request["TrainingJobName"], "throttled")
    # boto3 answers a ThrottlingException by asking again.
    answer = account.client("sagemaker").create_training_job(**request)
    assert answer["ResponseMetadata"]["RetryAttempts"] == 1
    assert account.ended_job(request["TrainingJobName"])["TrainingJobStatus"] == "Completed"


def test_an_entry_happens_as_often_as_it_says_whoever_it_meets(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    schedule = Faults(file)
    assert schedule.take("run-r1-a0", "throttled") is None
    faults.add(file, Fault("run-*", "throttled", times=2))
    faults.add(file, Fault("run-r1-*", "throttled", wait_s=5.0))
    assert schedule.take("other-r1-a0", "throttled") is None
    assert schedule.take("run-r1-a0", "host_lost", "interrupted") is None
    taken = [schedule.take("run-r1-a0", "throttled") for _ in range(4)]
    assert [None if fault is None else fault.wait_s for fault in taken] == [0, 0, 5, None]


def test_an_entry_happens_once_however_many_ask(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    faults.add(file, Fault("*", "throttled", times=5))
    schedule, taken = Faults(file), []
    threads = [
        threading.Thread(target=lambda: taken.append(schedule.take("job", "throttled"))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(fault is not None for fault in taken) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"job": "x", "fault": "flood"}]', "fault 'flood' for job 'x': must be one of throttled, "),
        ('[{"job": "x", "fault": "throttled", "time": 3}]', "unexpected keyword argument 'time'"),
        ("[", "Expecting value"),
    ],
)
def test_a_schedule_that_can_t_be_read_is_an_error_that_names_it(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "faults.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="faults.json: no list of faults: ") as caught:
        Faults(file).take("x", "throttled")
    assert said in str(caught.value)


LOOK: str = """
import os, pathlib, shutil, sys
from local_aws.checkpoint_sync import CheckpointSync
scandir = os.scandir
def deleting(path="."):
    if not isinstance(path, int) and pathlib.Path(path).name == "old":  # rmtree scans by number
        shutil.rmtree(path, ignore_errors=True)
    return scandir(path)
os.scandir = deleting
print(list(CheckpointSync(None, "s3://b/k", pathlib.Path(sys.argv[1]), job="j", faults=None)._stamps()))
"""


def test_a_checkpoint_deleted_while_it_is_looked_at_fails_no_job(tmp_path: Path) -> None:
    """A replica keeps two checkpoints: it deletes old ones whenever it likes."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").write_text(name)
    python = DEFAULT_VENV / "bin" / "python"  # the server's own environment
    done = subprocess.run([python, "-c", LOOK, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['new/index.json']\n"), done.stderr
