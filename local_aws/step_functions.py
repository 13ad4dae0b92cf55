"""Step Functions' optimized integration with SageMaker: createTrainingJob, and createTrainingJob.sync.

The job is created by the same code as over HTTP, as the state machine's role. `.sync` waits for its end;
Completed and Stopped succeed with DescribeTrainingJob's answer, Failed raises States.TaskFailed with that
answer as its Cause. Errors of the creation itself carry SageMaker's name and a Cause that is no JSON
("Create and manage Amazon SageMaker AI jobs with Step Functions", developer guide; the integration is built
on the AWS SDK for Java 1, hence AmazonSageMakerException for all that has no class of its own there).

`.sync` needs a rule that tells Step Functions of the job's end. AWS asks for the role's rights to it when the
state machine is made, and so do we.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from ministack.core.responses import error_response_json
from ministack.services import stepfunctions
from ministack.services.cloudformation import provisioners

from local_aws import branches
from local_aws.branches import BranchOver
from local_aws.iam import AccessDenied, Caller
from local_aws.json_service import ApiError
from local_aws.sagemaker_api import SageMaker
from local_aws.settings import ACCOUNT, REGION, Settings

RESOURCE = "arn:aws:states:::sagemaker:createTrainingJob"
SYNC_RESOURCE = f"{RESOURCE}.sync"

_MANAGED_RULE = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/StepFunctionsGetEventsForSageMakerTrainingJobsRule"
_MANAGED_RULE_ACTIONS = ("events:PutTargets", "events:PutRule", "events:DescribeRule")

# Step Functions marks the jobs it waits for, so that its role needs sagemaker:AddTags.
_SYNC_TAG = {"Key": "MANAGED_BY_AWS", "Value": "STARTED_BY_STEP_FUNCTIONS"}

_EXCEPTIONS = {
    "ResourceInUse": "SageMaker.ResourceInUseException",
    "ResourceLimitExceeded": "SageMaker.ResourceLimitExceededException",
    "ResourceNotFound": "SageMaker.ResourceNotFoundException",
}

_TIMES = (
    "CreationTime",
    "LastModifiedTime",
    "TrainingStartTime",
    "TrainingEndTime",
    "StartTime",
    "EndTime",
    "Timestamp",
)

# What the name of an execution may be (StartExecution, Step Functions API reference).
_EXECUTION_NAME = re.compile(r"""[^\s\x00-\x1f\x7f-\x9f<>{}\[\]?*"#%\\^|~`$&,;:/]{1,80}""")

_log = logging.getLogger("local_aws.step_functions")


def install(sagemaker: SageMaker, settings: Settings) -> None:
    def task(resource: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return _create(sagemaker, arguments, sync=resource.endswith(".sync"))

    stepfunctions._SERVICE_DISPATCH[RESOURCE] = task
    _check_roles_of_new_machines(settings)
    _check_new_executions()
    _let_succeed_have_output()


def _create(sagemaker: SageMaker, arguments: dict[str, Any], *, sync: bool) -> dict[str, Any]:
    caller = branches.current().session().caller
    if sync:
        arguments = {**arguments, "Tags": [*arguments.get("Tags", []), _SYNC_TAG]}
    with _named_errors():
        created = sagemaker.create_training_job(arguments, caller)
    return _wait(sagemaker, arguments["TrainingJobName"], caller) if sync else created


def _wait(sagemaker: SageMaker, name: str, caller: Caller) -> dict[str, Any]:
    branch = branches.current()
    job = sagemaker.job(name)
    while not job.wait(branches.POLL_S):
        if branch.is_over():
            _cancel(sagemaker, name, caller)
            raise BranchOver
    with _named_errors():
        described: dict[str, Any] = _in_milliseconds(
            sagemaker.describe_training_job({"TrainingJobName": name}, caller)
        )
    if described["TrainingJobStatus"] == "Failed":
        raise stepfunctions._ExecutionError("States.TaskFailed", json.dumps(described))
    return described


def _cancel(sagemaker: SageMaker, name: str, caller: Caller) -> None:
    """Best effort, as the guide says: a role that may not stop a job leaves it running."""
    try:
        sagemaker.stop_training_job({"TrainingJobName": name}, caller)
    except (ApiError, AccessDenied) as error:
        _log.warning("job=%s could not be stopped with its execution: %s", name, error)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """SageMaker's errors as the interpreter's, under the names that Step Functions gives them."""
    try:
        yield
    except ApiError as error:
        name = _EXCEPTIONS.get(error.code, "SageMaker.AmazonSageMakerException")
        raise stepfunctions._ExecutionError(name, _java_message(error.message, error.code)) from error
    except AccessDenied as error:
        raise stepfunctions._ExecutionError(
            "SageMaker.AmazonSageMakerException", _java_message(str(error), "AccessDeniedException")
        ) from error


def _java_message(message: str, code: str) -> str:
    return f"{message} (Service: AmazonSageMaker; Status Code: 400; Error Code: {code}; Proxy: null)"


def _in_milliseconds(value: Any) -> Any:
    """Times as Step Functions passes them on: whole milliseconds since the epoch."""
    if isinstance(value, dict):
        return {k: round(v * 1000) if k in _TIMES else _in_milliseconds(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_in_milliseconds(member) for member in value]
    return value


def _check_roles_of_new_machines(settings: Settings) -> None:
    """Refuse to create or update a machine whose role lacks the rights to `.sync`'s rule.

    CloudFormation creates by a function of its own and updates by the API's, so three are wrapped.
    """

    def problem(role_arn: str, definition: str) -> str | None:
        if SYNC_RESOURCE not in _resources(json.loads(definition)):
            return None
        return _managed_rule_problem(role_arn, settings)

    def checked(call: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
        def create_or_update(data: dict[str, Any]) -> Any:
            machine = stepfunctions._state_machines.get(data.get("stateMachineArn", "")) or {}
            role = data.get("roleArn", machine.get("roleArn", ""))
            denied = problem(role, data.get("definition", machine.get("definition", "{}")))
            return error_response_json("AccessDeniedException", denied) if denied else call(data)

        return create_or_update

    stepfunctions._create_state_machine = checked(stepfunctions._create_state_machine)
    stepfunctions._update_state_machine = checked(stepfunctions._update_state_machine)

    handlers = provisioners._RESOURCE_HANDLERS["AWS::StepFunctions::StateMachine"]
    create = handlers["create"]

    def create_by_cloudformation(logical_id: str, props: dict[str, Any], stack_name: str) -> Any:
        denied = problem(props.get("RoleArn", ""), provisioners._sfn_definition(props))
        if denied:
            raise ValueError(denied)
        return create(logical_id, props, stack_name)

    handlers["create"] = create_by_cloudformation


def _check_new_executions() -> None:
    """Refuse names that Step Functions refuses, and input that is no JSON: ministack runs it as `{}`."""
    start = stepfunctions._start_execution

    def start_if_valid(data: dict[str, Any]) -> Any:
        name = data.get("name")
        if name is not None and not _EXECUTION_NAME.fullmatch(name):
            return error_response_json("InvalidName", f"Invalid Name: '{name}'", 400)
        try:
            json.loads(data.get("input", "{}"), parse_constant=_no_json)
        except ValueError as error:
            said = f"Invalid State Machine Execution Input: '{error}'"
            return error_response_json("InvalidExecutionInput", said, 400)
        return start(data)

    stepfunctions._start_execution = start_if_valid


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _let_succeed_have_output() -> None:
    """ministack drops the Output of a Succeed state; the one function it calls there is told to keep it."""
    apply_output_path = stepfunctions._apply_output_path

    def apply(state: dict[str, Any], data: Any, context: Any = None) -> Any:
        if state["Type"] == "Succeed" and "Output" in state:
            return stepfunctions._apply_jsonata_output(state, data, context, default=data)
        return apply_output_path(state, data, context)

    stepfunctions._apply_output_path = apply


def _managed_rule_problem(role_arn: str, settings: Settings) -> str | None:
    machine_arn = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:new"
    try:
        caller = branches.assume_states_role(role_arn, machine_arn, settings).caller
        for action in _MANAGED_RULE_ACTIONS:
            caller.require(action, _MANAGED_RULE)
    except stepfunctions._ExecutionError as error:
        return str(error.cause)
    except AccessDenied as error:
        return f"'{role_arn}' is not authorized to create managed-rule. ({error})"
    return None


def _resources(value: Any) -> Iterator[str]:
    """Every Task's Resource, however deep in Maps and Parallels."""
    if isinstance(value, dict):
        if isinstance(value.get("Resource"), str):
            yield value["Resource"]
        for member in value.values():
            yield from _resources(member)
    elif isinstance(value, list):
        for member in value:
            yield from _resources(member)
