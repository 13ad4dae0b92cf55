"""The state machine as AWS will see it: its shape, its ends, its limits."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.replica_states import REDRIVE_REFUSED
from trainer.job_parameters import MAX_REPLICAS

Evaluate = Callable[..., Any]
States = dict[str, dict[str, Any]]


def test_every_state_has_a_comment(definition: dict[str, Any], states: States) -> None:
    assert [name for name, state in states.items() if not state.get("Comment")] == []
    assert definition["QueryLanguage"] == "JSONata"
    assert definition["Comment"]


def test_a_run_fails_by_names_one_can_search_for(states: States) -> None:
    fails = {name: state["Error"] for name, state in states.items() if state["Type"] == "Fail"}
    assert fails == {
        "InvalidRunParameters": "InvalidRunParameters",
        "QuotaTooSmall": "QuotaTooSmall",
        "RunNameTaken": "RunNameTaken",
        "RunNotRecorded": "RunNotRecorded",
        "GiveUp": "ReplicaFailed",  # of one rank; the run itself fails under the same name
        "ReplicaFailed": "ReplicaFailed",
        "ReplicasDiverged": "ReplicasDiverged",
    }


def test_a_run_goes_from_its_parameters_to_its_summary(definition: dict[str, Any]) -> None:
    top = definition["States"]
    path, name = [], definition["StartAt"]
    while name:
        path.append(name)
        name = top[name].get("Next") or top[name].get("Default")
    assert path == [
        "Defaults", "CheckParameters", "ParametersValid?", "NameRun", "NameJobs", "InstancesNeeded",
        "ListQuotas", "ListQuotasDone?", "AskForDefaults", "ListDefaultQuotas", "ListDefaultQuotasDone?",
        "QuotasSuffice?", "WriteRunFile", "FanOut", "ReplicasAgree?", "ReplicasDiverged",
    ]  # fmt: skip
    assert [choice["Next"] for choice in top["ReplicasAgree?"]["Choices"]] == ["Summary"]
    assert top["Summary"]["End"] is True
    assert [choice["Next"] for choice in top["ParametersValid?"]["Choices"]] == ["InvalidRunParameters"]


def test_nothing_is_started_before_the_run_is_recorded(definition: dict[str, Any], states: States) -> None:
    tasks = {name: state["Resource"] for name, state in states.items() if state["Type"] == "Task"}
    assert tasks == {
        "ListQuotas": "arn:aws:states:::aws-sdk:servicequotas:listServiceQuotas",
        "ListDefaultQuotas": "arn:aws:states:::aws-sdk:servicequotas:listAWSDefaultServiceQuotas",
        "WriteRunFile": "arn:aws:states:::aws-sdk:s3:putObject",
        "TrainReplica": "arn:aws:states:::sagemaker:createTrainingJob.sync",
        "ReadResult": "arn:aws:states:::aws-sdk:s3:getObject",
        "MarkRelaunching": "arn:aws:states:::aws-sdk:s3:putObject",
        "WriteAbortMarker": "arn:aws:states:::aws-sdk:s3:putObject",
        "StopJob": "arn:aws:states:::aws-sdk:sagemaker:stopTrainingJob",
    }
    inside = definition["States"]["FanOut"]["ItemProcessor"]["States"]
    assert "TrainReplica" in inside
    assert "WriteRunFile" not in inside


def test_run_json_is_written_once_and_holds_every_parameter(states: States, evaluate: Evaluate) -> None:
    parameters = {"n_replicas": 2}
    put = evaluate(states["WriteRunFile"]["Arguments"], bucket="b", run_id="run", parameters=parameters)
    assert put == {
        "Bucket": "b",
        "Key": "diloco-rdv/run/run.json",
        "Body": {"run_id": "run", "parameters": parameters},
        "ContentType": "application/json",
        "IfNoneMatch": "*",
    }


@pytest.mark.parametrize(
    ("cause", "taken"),
    [
        ("At least one of the pre-conditions you specified did not hold (Status Code: 412)", True),
        ("PreconditionFailed", True),
        ("Access Denied (Service: S3, Status Code: 403, Request ID: 412412412412)", False),
    ],
)
def test_a_taken_name_is_told_from_a_bucket_that_refuses(
    cause: str, taken: bool, states: States, evaluate: Evaluate
) -> None:
    (catcher,) = states["WriteRunFile"]["Catch"]
    assigned = evaluate(catcher["Assign"], error={"Error": "S3.S3Exception", "Cause": cause})
    (choice,) = states["NameTaken?"]["Choices"]
    assert catcher["Next"] == "NameTaken?"
    assert evaluate(choice["Condition"], **assigned) is taken
    assert [choice["Next"], states["NameTaken?"]["Default"]] == ["RunNameTaken", "RunNotRecorded"]
    assert cause in evaluate(states["RunNotRecorded"]["Cause"], bucket="b", **assigned)


def test_all_ranks_start_at_once(states: States, evaluate: Evaluate) -> None:
    """A replica that waits for its turn would be waited for by those that have theirs."""
    fan_out = states["FanOut"]
    assert fan_out["MaxConcurrency"] == MAX_REPLICAS
    assert fan_out["ItemProcessor"]["ProcessorConfig"] == {"Mode": "INLINE"}
    for n_replicas in (1, 2, 40):
        ranks = evaluate(fan_out["Items"], parameters={"n_replicas": n_replicas})
        assert ranks == list(range(n_replicas))


def test_a_failed_replica_stops_every_job_of_the_run(states: States, evaluate: Evaluate) -> None:
    (catcher,) = states["FanOut"]["Catch"]
    assert [catcher["ErrorEquals"], catcher["Next"]] == [["States.ALL"], "StopJobs"]
    names = evaluate(
        states["StopJobs"]["Items"], job_prefix="p", parameters={"n_replicas": 2, "max_relaunches": 1}
    )
    assert names == ["p-r0-a0", "p-r0-a1", "p-r1-a0", "p-r1-a1"]
    assert evaluate(
        states["StopJobs"]["Items"], job_prefix="p", parameters={"n_replicas": 1, "max_relaunches": 0}
    ) == ["p-r0-a0"]
    # A job that has ended can't be stopped, which is no reason to stop stopping.
    assert [c["ErrorEquals"] for c in states["StopJob"]["Catch"]] == [["States.ALL"]]
    assert [c["ErrorEquals"] for c in states["StopJobs"]["Catch"]] == [["States.ALL"]]
    assert states["StopJobs"]["Next"] == "ReplicaFailed"


def test_the_runs_cause_is_the_replicas(states: States, evaluate: Evaluate) -> None:
    (catcher,) = states["FanOut"]["Catch"]
    failed = {"Error": "ReplicaFailed", "Cause": f"rank 1 failed. {REDRIVE_REFUSED}"}
    assigned = evaluate(catcher["Assign"], error=failed)
    assert evaluate(states["ReplicaFailed"]["Cause"], **assigned) == failed["Cause"]
    other = evaluate(catcher["Assign"], error={"Error": "States.Runtime", "Cause": "x" * 40_000})
    assert len(evaluate(states["ReplicaFailed"]["Cause"], **other)) < 8000
    assert other["run_failure"].endswith(f"x. {REDRIVE_REFUSED}")


def test_every_cause_says_to_start_a_new_execution(states: States) -> None:
    """Redrive would resume where names and markers are taken; the runs' Cause is the replica's."""
    for name, state in states.items():
        if state["Type"] == "Fail" and name != "ReplicaFailed":
            assert REDRIVE_REFUSED in state["Cause"], name


def _result(rank: int, weights_hash: str | None) -> dict[str, Any]:
    result = {
        "rank": rank, "status": "Completed", "attempts": 1, "job_name": f"j-r{rank}-a0", "rounds": 2,
        "instance_type": "ml.m5.xlarge", "billable_s": 10 + rank, "model_uri": "s3://b/m",
        "first_loss": 5.5, "last_loss": 5.4,
    }  # fmt: skip
    return result if weights_hash is None else result | {"weights_hash": weights_hash}


@pytest.mark.parametrize(
    ("hashes", "agree"),
    [(["a"], True), (["a"] * 40, True), (["a", "b"], False), (["a", None], False), ([None], False),
     ([None, None], False)],
)  # fmt: skip
def test_replicas_agree_when_all_have_the_same_hash(
    hashes: list[str | None], agree: bool, states: States, evaluate: Evaluate
) -> None:
    replicas = [_result(rank, weights_hash) for rank, weights_hash in enumerate(hashes)]
    (choice,) = states["ReplicasAgree?"]["Choices"]
    run = {"replicas": replicas, "parameters": {"n_replicas": len(hashes)}}
    assert evaluate(choice["Condition"], **run) is agree
    if not agree:
        cause = evaluate(states["ReplicasDiverged"]["Cause"], replicas=replicas)
        assert all(f"rank {rank} {h or 'none'}" in cause for rank, h in enumerate(hashes))
        assert cause.endswith(REDRIVE_REFUSED)


@pytest.mark.parametrize("n_replicas", [1, 3])
def test_the_summary_says_where_the_model_is_and_what_each_replica_did(
    n_replicas: int, states: States, evaluate: Evaluate
) -> None:
    replicas = [_result(rank, "a") for rank in range(n_replicas)]
    assert evaluate(states["Summary"]["Output"], run_id="run", replicas=replicas) == {
        "run_id": "run",
        "model_uri": "s3://b/m",
        "weights_hash": "a",
        "rounds": 2,
        "first_loss": 5.5,
        "last_loss": 5.4,
        "billable_s": sum(10 + rank for rank in range(n_replicas)),
        "replicas": [
            {"rank": rank, "status": "Completed", "attempts": 1, "job_name": f"j-r{rank}-a0", "rounds": 2,
             "weights_hash": "a", "instance_type": "ml.m5.xlarge", "billable_s": 10 + rank}
            for rank in range(n_replicas)
        ],
    }  # fmt: skip


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "object"])
def test_a_result_is_read_as_text_or_object_and_trimmed(
    as_text: bool, states: States, evaluate: Evaluate
) -> None:
    left = {"rank": 1, "claim": 0, "rounds": 2, "weights_hash": "a", "first_loss": None, "extra": "x" * 9999}
    body = json.dumps(left) if as_text else left
    replica = {"rank": 1, "attempt": 2, "job_name": "j", "instance_type": "ml.m5.xlarge", "billable_s": 7}
    output = evaluate(states["ReadResult"]["Output"], result={"Body": body, "ETag": "x"}, **replica)
    assert output == {
        "rank": 1, "status": "Completed", "attempts": 3, "job_name": "j", "rounds": 2, "weights_hash": "a",
        "first_loss": None, "instance_type": "ml.m5.xlarge", "billable_s": 7,
    }  # fmt: skip
    key = evaluate(states["ReadResult"]["Arguments"], bucket="b", run_id="run", rank=1)["Key"]
    assert key == "diloco-rdv/run/results/rank_0001.json"


def test_throttling_and_quota_are_met_before_other_failures(states: States) -> None:
    """States.TaskFailed and States.ALL match a refused creation too, so the named errors come first."""
    (retry,) = states["TrainReplica"]["Retry"]
    assert retry["ErrorEquals"][0] == "SageMaker.ResourceLimitExceededException"
    assert [retry["JitterStrategy"], retry["MaxAttempts"], retry["MaxDelaySeconds"]] == ["FULL", 8, 300]
    refused, failed = states["TrainReplica"]["Catch"]
    assert "SageMaker.AmazonSageMakerException" in refused["ErrorEquals"]
    assert [refused["Next"], failed["Next"]] == ["Throttled?", "Relaunch?"]
    assert failed["ErrorEquals"] == ["States.ALL"]


def test_no_name_is_assigned_in_two_scopes_or_read_where_it_is_set(definition: dict[str, Any]) -> None:
    """Step Functions refuses the first; the second means something else in other interpreters."""
    outer = _assigned(definition["States"])
    for state in definition["States"].values():
        if "ItemProcessor" in state:
            assert not outer & _assigned(state["ItemProcessor"]["States"])


def _assigned(states: States) -> set[str]:
    names = set()
    for state in states.values():
        for block in (state, *state.get("Catch", []), *state.get("Choices", [])):
            assign = block.get("Assign", {})
            for name, value in assign.items():
                others = assign.keys() - {name}
                text = json.dumps(value)
                assert not any(f"${other} " in text or f"${other})" in text for other in others), name
            names |= assign.keys()
    return names


def test_the_definition_is_far_below_its_limit(definition: dict[str, Any]) -> None:
    """1 MiB: Step Functions service quotas. The longest expression is the check of the parameters."""
    assert len(json.dumps(definition).encode()) < 100_000
