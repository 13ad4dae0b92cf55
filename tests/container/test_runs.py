"""Whole executions of the state machine, each replica a training job in a container of the built image."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.definition import definitions
from infra.replica_states import KILLED_HINT
from local_aws import environment
from local_aws.settings import ACCOUNT
from local_aws.supervisor import running
from tests.infra.conftest import all_states, synthesise
from tests.local_aws.conftest import Account, job_role, states_role  # noqa: F401

# What a placeholder of infra.definition stands for.
BUCKET = "placeholder-bucket-or-repository"

TRAINER = """
from their_parts.constant import LOSS
from trainer.train import diloco_train

def train(**parameters):
    return {**diloco_train(**parameters), "last_loss": LOSS}
"""


def machine(account: Account, replica_role: str, machine_role: str) -> str:
    """The state machine that `cdk deploy` makes, in `account`, its references filled in."""
    (definition,) = definitions(synthesise()["runs"]).values()
    placeholder = (
        all_states(definition)["TrainReplica"]["Arguments"].partition('"RoleArn": "')[2].partition('"')[0]
    )
    assert placeholder.startswith(f"arn:aws:iam::{ACCOUNT}:role/")
    text = json.dumps(definition).replace(placeholder, replica_role)
    # The image's own name stays: it is in no registry of the account, and taken on trust.
    text = text.replace(f'"{BUCKET}"', f'"{account.bucket}"')
    created = account.client("stepfunctions").create_state_machine(
        name=account.unique("runs"), definition=text, roleArn=machine_role
    )
    arn: str = created["stateMachineArn"]
    return arn


@pytest.fixture
def account(
    image: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Account]:
    """An account whose jobs have as much memory as the test's parameter says."""
    memory: str | None = getattr(request, "param", None)
    state_dir = tmp_path_factory.mktemp("local_aws")
    with running(
        venv=environment.DEFAULT_VENV, state_dir=state_dir, image=image, job_memory=memory
    ) as server:
        yield Account(server.settings)


@pytest.fixture
def runs(account: Account) -> str:
    """The state machine, with roles of its own."""
    # To delete is for checkpoints that were replaced.
    actions = ("s3:GetObject", "s3:PutObject", "s3:ListBucket", "s3:DeleteObject")
    s3 = account.allow(*actions, on=f"arn:aws:s3:::{account.bucket}*")
    replica = account.job_role(s3, account.allow("logs:*"))
    states = account.states_role(s3, account.allow("sagemaker:*"), account.allow("iam:PassRole", on=replica))
    return machine(account, replica, states)


def test_a_run_trains_with_code_of_the_users_own(
    account: Account, runs: str, tmp_path: Path, summary: list[str]
) -> None:
    s3 = account.client("s3")
    for key, body in {
        "mine/their_trainer.py": TRAINER,
        "mine/their_parts/constant.py": "LOSS = 0.125",
        "mine-too/their_trainer.py": "raise SystemExit('the wrong folder')",
    }.items():
        s3.put_object(Bucket=account.bucket, Key=f"diloco-in/{key}", Body=body.encode())
    given = {"source_uri": "diloco-in/mine", "trainer_module": "their_trainer", "trainer_fn": "train"}
    execution = account.execute(runs, given | {"poll_interval_s": 0.1})
    assert execution["status"] == "SUCCEEDED", execution.get("cause")
    output = json.loads(execution["output"])
    assert output["last_loss"] == 0.125
    assert len({replica["weights_hash"] for replica in output["replicas"]}) == 1
    summary.append("a run with the user's own code through the state machine")


@pytest.mark.parametrize("account", ["64m"], indirect=True)
def test_a_run_out_of_memory_says_so_in_its_cause(account: Account, runs: str) -> None:
    execution = account.execute(runs, {"n_replicas": 1, "max_relaunches": 0})
    assert (execution["status"], execution["error"]) == ("FAILED", "ReplicaFailed")
    assert execution["cause"].startswith(
        "rank 0 failed in attempt 1: ClientError: Please use an instance type with more memory, or reduce "
        f"the size of job data processed on an instance, exit code: 137{KILLED_HINT}. Log: group "
    )
