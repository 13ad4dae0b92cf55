"""How the embedded AWS starts and ends as a program: what it prints, returns, and leaves behind."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from local_aws.environment import PROJECT_ROOT


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts `python -m local_aws`; whatever a failed test left is ended with its session."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "local_aws", "--state-dir", str(tmp_path / "state"), *arguments],
            cwd=PROJECT_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def exports(process: subprocess.Popen[str]) -> dict[str, str]:
    """The `export` lines, read until the last line of the announcement."""
    assert process.stdout is not None
    found = {}
    for line in process.stdout:
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").strip().partition("=")
            found[name] = value
        if "Ctrl-C" in line:
            return found
    raise AssertionError(process.communicate()[1])


def client(service: str, environment: dict[str, str]) -> Any:
    make: Any = boto3.client  # its stubs want the service's name as a literal
    return make(
        service,
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def long_job(account: Any, environment: dict[str, str]) -> int:
    """Starts a job with a child in the account of `environment`; the child's process id."""
    role = client("iam", environment).create_role(
        RoleName="job",
        AssumeRolePolicyDocument='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": '
        '"sts:AssumeRole", "Principal": {"Service": "sagemaker.amazonaws.com"}}]}',
    )["Role"]["Arn"]
    client("iam", environment).put_role_policy(
        RoleName="job",
        PolicyName="logs",
        PolicyDocument='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "logs:*", '
        '"Resource": "*"}]}',
    )
    request = account.job_request(role, "sh", "-c", "trap '' TERM; sleep 600 & echo $!; wait")
    client("sagemaker", environment).create_training_job(**request)
    logs, group = client("logs", environment), "/aws/sagemaker/TrainingJobs"

    def logged() -> str | None:
        if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
            return None
        streams = logs.describe_log_streams(logGroupName=group)["logStreams"]
        events = [
            event
            for s in streams
            for event in logs.get_log_events(logGroupName=group, logStreamName=s["logStreamName"])["events"]
        ]
        return events[0]["message"] if events else None

    return int(account.wait_until(logged, "the job logs its child"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_every_job(account: Any, start: Any, number: int) -> None:
    process = start()
    environment = exports(process)
    assert environment["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    child = long_job(account, environment)
    process.send_signal(number)
    assert process.wait(timeout=30) == 0
    assert not account.is_running(child)
    assert not_listening(environment)


def test_the_server_and_its_jobs_end_with_a_supervisor_that_is_killed(account: Any, start: Any) -> None:
    process = start()
    environment = exports(process)
    child = long_job(account, environment)
    process.kill()
    account.wait_until(lambda: not account.is_running(child), "the job ends")
    account.wait_until(lambda: not_listening(environment), "the server ends")


def test_jobs_end_with_a_server_that_is_killed(account: Any, start: Any) -> None:
    process = start()
    environment = exports(process)
    child = long_job(account, environment)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    account.wait_until(lambda: not account.is_running(child), "the job ends")
    assert process.wait(timeout=30) == 1
    assert process.stderr.read().startswith("local_aws: the server died:\n")


def test_a_command_runs_against_the_account_and_its_code_is_returned(start: Any) -> None:
    code = "import boto3; print(boto3.client('sts').get_caller_identity()['Account']); raise SystemExit(7)"
    process = start("--", sys.executable, "-c", code)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (7, "000000000000"), err


def test_ctrl_c_in_a_terminal_ends_the_command_and_the_server(account: Any, start: Any) -> None:
    """The terminal sends SIGINT to the whole foreground group, the command included."""
    show = "import os, time; print(os.environ['AWS_ENDPOINT_URL'], flush=True); time.sleep(600)"
    process = start("--", sys.executable, "-c", show)
    environment = {"AWS_ENDPOINT_URL": process.stdout.readline().strip()}
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=30)
    assert process.returncode != 0
    assert not_listening(environment)


def test_two_servers_have_different_keys(start: Any, tmp_path: Path) -> None:
    """The CDK CLI remembers an account by its access key."""
    shown = ("--", sys.executable, "-c", "import os; print(os.environ['AWS_ACCESS_KEY_ID'])")
    first = start(*shown)
    second = start("--state-dir", str(tmp_path / "second"), *shown)
    assert first.communicate(timeout=60)[0] != second.communicate(timeout=60)[0]


def test_a_port_in_use_is_one_clear_error(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err == (
        f"local_aws: port {port} of 127.0.0.1 cannot be used (Address already in use): "
        "name another, or leave out --port\n"
    )


def test_a_port_can_be_used_again_at_once(start: Any) -> None:
    """Connections of the server before linger in TIME_WAIT; its account and its jobs are gone."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "import boto3; s3 = boto3.client('s3'); print(len(s3.list_buckets()['Buckets'])); "
    for _ in range(2):
        process = start(
            "--port", str(port), "--", sys.executable, "-c", f"{code}s3.create_bucket(Bucket='left')"
        )
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "0\n"), err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--image", "x"], "--image and --job-memory are for --runtime podman"),
        (["--runtime", "podman"], "--runtime podman needs --image: the trainer image"),
    ],
)
def test_a_runtime_that_can_not_be_is_one_clear_error(start: Any, arguments: list[str], said: str) -> None:
    process = start(*arguments)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert said in err


def test_quotas_can_be_set_and_are_enforced(account: Any, start: Any, tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.json"
    quotas.write_text('{"ml.m5.xlarge for training job usage": 1}')
    environment = exports(start("--quotas", str(quotas)))
    long_job(account, environment)
    role = client("iam", environment).get_role(RoleName="job")["Role"]["Arn"]
    with pytest.raises(client("sagemaker", environment).exceptions.ResourceLimitExceeded) as caught:
        client("sagemaker", environment).create_training_job(**account.job_request(role, "true"))
    assert "is 1 Instances, with current utilization of 1 Instances" in str(caught.value)


def test_a_state_folder_belongs_to_one_server(start: Any) -> None:
    first = start()
    exports(first)
    second = start()
    err = second.communicate(timeout=60)[1]
    assert second.returncode == 1
    assert "is in use by another embedded AWS" in err


def not_listening(environment: dict[str, str]) -> bool:
    port = int(environment["AWS_ENDPOINT_URL"].rpartition(":")[2])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
