"""State machines on the embedded account: `.sync`, its errors and its end, and AWS SDK calls."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

SYNC = "arn:aws:states:::sagemaker:createTrainingJob.sync"


def train(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"Type": "Task", "Resource": SYNC, "Arguments": request, "End": True, **more}


def sdk(call: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    resource = f"arn:aws:states:::aws-sdk:{call}"
    return {"Type": "Task", "Resource": resource, "Arguments": arguments, "End": True, **more}


def fan_out(items: list[Any], task: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An inline Map whose iterations run `task`."""
    processor = {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": "Train", "States": {"Train": task}}
    return {"Type": "Map", "Items": items, "ItemProcessor": processor, "End": True, **more}


def named(request: dict[str, Any], expression: str) -> dict[str, Any]:
    """The request with a name of its own for each iteration."""
    return {**request, "TrainingJobName": f"{{% '{request['TrainingJobName']}-r' & {expression} %}}"}


def test_two_replicas_that_meet_in_s3_succeed(account: Any, states_role: str, job_role: str) -> None:
    prefix = account.unique("meet")
    code = (
        "import boto3, os, time; s3 = boto3.client('s3'); rank = os.environ['RANK'];"
        f"put = dict(Bucket='{account.bucket}'); s3.put_object(Key='{prefix}/' + rank, Body=b'x', **put)\n"
        f"while s3.list_objects_v2(Prefix='{prefix}/', **put)['KeyCount'] < 2: time.sleep(0.05)"
    )
    request = account.python_job(job_role, code, Environment={"RANK": "{% $string($states.input) %}"})
    task = train(named(request, "$string($states.input)"), Output="{% $states.result.TrainingJobStatus %}")
    ended = account.execute(account.machine(states_role, {"FanOut": fan_out([0, 1], task)}))
    assert (ended["status"], ended.get("cause")) == ("SUCCEEDED", None)
    assert json.loads(ended["output"]) == ["Completed", "Completed"]


def test_sync_returns_the_job_with_times_in_milliseconds(
    account: Any, states_role: str, job_role: str
) -> None:
    request = account.job_request(job_role, "true")
    ended = account.execute(account.machine(states_role, {"Train": train(request)}))
    job = json.loads(ended["output"])
    described = account.client("sagemaker").describe_training_job(TrainingJobName=request["TrainingJobName"])
    assert job["TrainingJobArn"] == described["TrainingJobArn"]
    assert job["TrainingEndTime"] == round(described["TrainingEndTime"].timestamp() * 1000)


def test_a_failed_job_raises_task_failed_with_its_description(
    account: Any, states_role: str, job_role: str
) -> None:
    request = account.job_request(job_role, "sh", "-c", "exit 7")
    ended = account.execute(account.machine(states_role, {"Train": train(request)}))
    assert (ended["status"], ended["error"]) == ("FAILED", "States.TaskFailed")
    assert json.loads(ended["cause"])["FailureReason"] == "AlgorithmError: , exit code: 7"


def test_a_stopped_job_is_a_success_of_sync(account: Any, states_role: str, job_role: str) -> None:
    request = account.job_request(job_role, "sleep", "60", StoppingCondition={"MaxRuntimeInSeconds": 1})
    ended = account.execute(account.machine(states_role, {"Train": train(request)}))
    assert ended["status"] == "SUCCEEDED"
    job = json.loads(ended["output"])
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


def test_errors_of_the_creation_have_sagemaker_s_names(account: Any, states_role: str, job_role: str) -> None:
    used = account.job_request(job_role, "true")
    account.run_job(used)
    no_quota = account.job_request(job_role, "true")
    no_quota["ResourceConfig"]["InstanceType"] = "ml.p5.48xlarge"
    invalid = account.job_request(job_role, "true", TrainingJobName="under_score")
    unknown = account.job_request(job_role, "true", Entrypoint=["true"])
    for request, error, said in (
        (used, "SageMaker.ResourceInUseException", "Error Code: ResourceInUse"),
        (no_quota, "SageMaker.ResourceLimitExceededException", "ml.p5.48xlarge for training job usage"),
        (invalid, "SageMaker.AmazonSageMakerException", "Error Code: ValidationException"),
        (unknown, "SageMaker.AmazonSageMakerException", "'entrypoint' is not a parameter"),
    ):
        ended = account.execute(account.machine(states_role, {"Train": train(request)}))
        assert (ended["status"], ended["error"]) == ("FAILED", error)
        assert said in ended["cause"]


def test_the_state_machine_s_role_is_what_calls_sagemaker(account: Any, job_role: str) -> None:
    role = account.states_role(account.allow("sagemaker:*"))  # all but iam:PassRole
    ended = account.execute(account.machine(role, {"Train": train(account.job_request(job_role, "true"))}))
    assert ended["error"] == "SageMaker.AmazonSageMakerException"
    assert f"iam:PassRole on resource: {job_role}" in ended["cause"]


@pytest.mark.parametrize("missing", ["events:PutRule", "events:PutTargets", "events:DescribeRule"])
def test_a_role_without_the_rule_of_sync_makes_no_machine(account: Any, job_role: str, missing: str) -> None:
    rights = {"events:PutRule", "events:PutTargets", "events:DescribeRule"} - {missing}
    role = account.role({"Service": "states.amazonaws.com"}, account.allow(*rights, "sagemaker:*"))
    with pytest.raises(ClientError) as caught:
        account.machine(role, {"Train": train(account.job_request(job_role, "true"))})
    assert caught.value.response["Error"]["Code"] == "AccessDeniedException"
    assert "is not authorized to create managed-rule" in str(caught.value)
    assert missing in str(caught.value)


def test_stop_execution_stops_every_job(account: Any, states_role: str, job_role: str) -> None:
    request = account.job_request(job_role, "sleep", "600")
    task = train(named(request, "$string($states.input)"))
    execution = account.start_execution(account.machine(states_role, {"FanOut": fan_out([0, 1], task)}))
    names = [f"{request['TrainingJobName']}-r{rank}" for rank in (0, 1)]
    for name in names:
        account.wait_until(lambda name=name: status(account, name) == "InProgress", f"{name} runs")
    account.client("stepfunctions").stop_execution(executionArn=execution, cause="enough")
    assert [account.ended_job(name)["TrainingJobStatus"] for name in names] == ["Stopped", "Stopped"]
    ended = account.ended_execution(execution)
    assert (ended["status"], ended["cause"]) == ("ABORTED", "enough")


def test_a_role_that_may_not_stop_jobs_leaves_them_running(account: Any, job_role: str) -> None:
    """Cancelling with the execution is a best effort of Step Functions' own."""
    role = account.states_role(
        account.allow("sagemaker:CreateTrainingJob", "sagemaker:AddTags", "iam:PassRole")
    )
    request = account.job_request(job_role, "sh", "-c", "echo started; sleep 600")
    name = request["TrainingJobName"]
    execution = account.start_execution(account.machine(role, {"Train": train(request)}))
    account.wait_until(lambda: status(account, name) == "InProgress", f"{name} runs")
    account.client("stepfunctions").stop_execution(executionArn=execution)
    account.wait_until(lambda: account.job_log(name), "the job logs")
    assert status(account, name) == "InProgress"
    account.client("sagemaker").stop_training_job(TrainingJobName=name)
    assert account.ended_job(name)["TrainingJobStatus"] == "Stopped"


def test_a_failed_iteration_stops_its_siblings_and_is_what_catch_sees(
    account: Any, states_role: str, job_role: str
) -> None:
    # The failing one is last: its siblings' abandonment must not pass for the cause.
    request = account.job_request(job_role, "sh", "-c", "test $RANK = 2 && exit 9; sleep 600")
    request["Environment"] = {"RANK": "{% $string($states.input) %}"}
    task = train(named(request, "$string($states.input)"))
    catch = [{"ErrorEquals": ["States.ALL"], "Output": "{% $states.errorOutput %}", "Next": "Caught"}]
    machine = account.machine(
        states_role,
        {"FanOut": fan_out([0, 1, 2], task, Catch=catch), "Caught": {"Type": "Pass", "End": True}},
    )
    ended = account.execute(machine)
    caught = json.loads(ended["output"])
    assert caught["Error"] == "States.TaskFailed"
    assert json.loads(caught["Cause"])["FailureReason"] == "AlgorithmError: , exit code: 9"
    names = [f"{request['TrainingJobName']}-r{rank}" for rank in (0, 1)]
    assert [account.ended_job(name)["TrainingJobStatus"] for name in names] == ["Stopped", "Stopped"]


def test_a_caught_failure_relaunches_while_its_sibling_runs_on(
    account: Any, states_role: str, job_role: str
) -> None:
    gate = account.unique("gate")
    wait = (
        "import boto3, time; s3 = boto3.client('s3')\n"
        f"gate = dict(Bucket='{account.bucket}', Prefix='{gate}')\n"
        "while 'Contents' not in s3.list_objects_v2(**gate): time.sleep(0.05)"
    )
    again = f"import boto3; boto3.client('s3').put_object(Bucket='{account.bucket}', Key='{gate}', Body=b'x')"
    request = account.python_job(job_role, "{% $states.input.code %}")
    first = train(
        {**request, "TrainingJobName": f"{{% '{request['TrainingJobName']}-' & $states.input.name %}}"},
        Catch=[
            {
                "ErrorEquals": ["States.TaskFailed"],
                "Output": {"name": "{% $states.input.name & '-a1' %}", "code": again},
                "Next": "Train",
            }
        ],
        Output="{% $states.result.TrainingJobName %}",
    )
    items = [{"name": "r0", "code": wait}, {"name": "r1", "code": "raise SystemExit(1)"}]
    ended = account.execute(account.machine(states_role, {"FanOut": fan_out(items, first)}))
    base = request["TrainingJobName"]
    assert ended["status"] == "SUCCEEDED", ended.get("cause")
    assert json.loads(ended["output"]) == [f"{base}-r0", f"{base}-r1-a1"]


def test_a_json_object_as_body_is_written_as_its_text(account: Any, states_role: str) -> None:
    key = account.unique("run.json")
    place = {"Bucket": account.bucket, "Key": key}
    put = sdk("s3:putObject", {**place, "Body": {"n_replicas": 2}})
    get = sdk("s3:getObject", place, Output="{% $parse($states.result.Body) %}")
    machine = account.machine(states_role, {"Put": {**_then(put, "Get")}, "Get": get})
    ended = account.execute(machine)
    assert json.loads(ended["output"]) == {"n_replicas": 2}


def test_errors_of_the_sdk_have_java_s_names(account: Any, states_role: str) -> None:
    key = account.unique("once")
    account.client("s3").put_object(Bucket=account.bucket, Key=key, Body=b"first")
    taken = {"Bucket": account.bucket, "Key": key, "Body": "second", "IfNoneMatch": "*"}
    for call, arguments, error, said in (
        ("s3:putObject", taken, "S3.S3Exception", "Status Code: 412"),
        (
            "s3:getObject",
            {"Bucket": account.bucket, "Key": "none"},
            "S3.NoSuchKeyException",
            "Status Code: 404",
        ),
        ("s3:deleteObject", {"Bucket": account.bucket, "Key": key}, "S3.S3Exception", "Status Code: 403"),
        ("s3:putObject", {**taken, "Colour": "red"}, "States.Runtime", "'Colour' is not supported"),
        ("s3:paintObject", {}, "States.Runtime", "is no call of an AWS SDK"),
    ):
        ended = account.execute(account.machine(states_role, {"Call": sdk(call, arguments)}))
        assert (ended["status"], ended["error"]) == ("FAILED", error)
        assert said in ended["cause"]
    assert account.client("s3").get_object(Bucket=account.bucket, Key=key)["Body"].read() == b"first"


def test_camel_case_services_take_and_return_pascal_case(account: Any) -> None:
    role = account.states_role(account.allow("logs:*", "servicequotas:*"))
    group = account.unique("/group")
    account.client("logs").create_log_group(logGroupName=group)
    logs = sdk(
        "cloudwatchlogs:describeLogGroups",
        {"LogGroupNamePrefix": group},
        Output="{% $states.result.LogGroups[0].LogGroupName %}",
    )
    assert json.loads(account.execute(account.machine(role, {"Call": logs}))["output"]) == group
    quotas = sdk(
        "servicequotas:listServiceQuotas",
        {"ServiceCode": "sagemaker"},
        Output="{% $states.result.Quotas[QuotaName = 'ml.m5.xlarge for training job usage'].Value %}",
    )
    assert json.loads(account.execute(account.machine(role, {"Call": quotas}))["output"]) == 30


def test_succeed_has_its_output(account: Any, states_role: str) -> None:
    machine = account.machine(
        states_role, {"Done": {"Type": "Succeed", "Output": {"sum": "{% $states.input.a + 1 %}"}}}
    )
    ended = account.execute(machine, {"a": 1})
    assert (ended["status"], json.loads(ended["output"])) == ("SUCCEEDED", {"sum": 2})


@pytest.mark.parametrize("text", ["smoke", "{", "", '{"a": NaN}'])
def test_input_that_is_no_json_starts_nothing(account: Any, states_role: str, text: str) -> None:
    machine, states = (
        account.machine(states_role, {"Done": {"Type": "Succeed"}}),
        account.client("stepfunctions"),
    )
    with pytest.raises(states.exceptions.InvalidExecutionInput):
        states.start_execution(stateMachineArn=machine, input=text)
    assert states.list_executions(stateMachineArn=machine)["executions"] == []


@pytest.mark.parametrize("name", ["a b", "a/b", "a:b", 'a"', "a\\b", "a*", "x" * 81, "a\u0085"])
def test_a_name_that_no_execution_may_have_is_refused(account: Any, states_role: str, name: str) -> None:
    machine, states = (
        account.machine(states_role, {"Done": {"Type": "Succeed"}}),
        account.client("stepfunctions"),
    )
    with pytest.raises(states.exceptions.InvalidName):
        states.start_execution(stateMachineArn=machine, name=name)
    states.start_execution(stateMachineArn=machine, name="a+b_c.d@e-\u00fc")


def _then(task: dict[str, Any], following: str) -> dict[str, Any]:
    return {**{k: v for k, v in task.items() if k != "End"}, "Next": following}


def status(account: Any, name: str) -> str | None:
    """None while there is no such job."""
    listed = account.client("sagemaker").list_training_jobs(NameContains=name)["TrainingJobSummaries"]
    return listed[0]["TrainingJobStatus"] if listed else None
