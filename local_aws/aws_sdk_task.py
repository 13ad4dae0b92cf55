"""Step Functions' AWS SDK integrations, arn:aws:states:::aws-sdk:<service>:<action>, through botocore.

The call goes to this same account over HTTP, as the state machine's role, so that its rights are evaluated
where every other client's are. What Step Functions does on the way ("Learning to use AWS service SDK
integrations", developer guide):

- parameters and results have PascalCase names, whatever the API's own spelling;
- a blob takes a string; an object or array is written as its JSON text; a streamed result is read as text;
- errors are named after the AWS SDK for Java 2: the client's name, a dot, and the exception's class, which is
  the modelled error's name ending in Exception, or the service's base class: S3.NoSuchKeyException for a
  modelled error, S3.S3Exception for the others, a failed precondition among them.
"""

import datetime
import json
import re
from functools import cache
from typing import Any

import botocore.session
from botocore.exceptions import BotoCoreError, ClientError
from botocore.model import OperationModel, ServiceModel, Shape, StructureShape
from botocore.response import StreamingBody
from ministack.services import stepfunctions

from local_aws import branches

PREFIX = "arn:aws:states:::aws-sdk:"

# Where botocore's folder isn't the Java client's name in lower case.
_BOTOCORE_NAMES = {
    "cloudwatchlogs": "logs",
    "eventbridge": "events",
    "servicequotas": "service-quotas",
    "sfn": "stepfunctions",
}


def install() -> None:
    stepfunctions._SERVICE_DISPATCH[PREFIX] = _task


def _task(resource: str, arguments: dict[str, Any]) -> Any:
    service, _, action = resource.removeprefix(PREFIX).partition(":")
    name = _BOTOCORE_NAMES.get(service, service)
    model = _service_model(name)
    operation = _operation(model, action) if model else None
    if model is None or operation is None:
        raise stepfunctions._ExecutionError("States.Runtime", f"{resource} is no call of an AWS SDK")
    client = branches.current().session().client(name)
    try:
        parameters = _to_api(operation.input_shape, arguments)
        answer = client._make_api_call(operation.name, parameters)
    except ClientError as error:
        raise stepfunctions._ExecutionError(*_named(model, operation, error)) from error
    except BotoCoreError as error:  # parameters of a wrong type, or missing
        raise stepfunctions._ExecutionError("States.Runtime", f"{resource}: {error}") from error
    answer.pop("ResponseMetadata", None)
    return _from_api(answer)


@cache
def _service_model(name: str) -> ServiceModel | None:
    session = botocore.session.get_session()
    return session.get_service_model(name) if name in session.get_available_services() else None


def _operation(model: ServiceModel, action: str) -> OperationModel | None:
    name = action[:1].upper() + action[1:]
    return model.operation_model(name) if name in model.operation_names else None


def _to_api(shape: Shape | None, value: Any) -> Any:
    """`value` with the API's own names and Python's own types."""
    if shape is None:
        return {}
    kind: Any = shape
    if isinstance(shape, StructureShape) and isinstance(value, dict):
        return {(n := _member(shape, key)): _to_api(shape.members[n], v) for key, v in value.items()}
    if shape.type_name == "list" and isinstance(value, list):
        return [_to_api(kind.member, member) for member in value]
    if shape.type_name == "map" and isinstance(value, dict):
        return {key: _to_api(kind.value, member) for key, member in value.items()}
    if shape.type_name == "blob":
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    return value


def _member(shape: StructureShape, key: str) -> str:
    for name in shape.members:
        if name[:1].upper() + name[1:] == key:
            return str(name)
    raise stepfunctions._ExecutionError(
        "States.Runtime", f"The field '{key}' is not supported by Step Functions ({shape.name})"
    )


def _from_api(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: _from_api(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_from_api(member) for member in value]
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, StreamingBody):
        return value.read().decode("utf-8", "replace")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _named(model: ServiceModel, operation: OperationModel, error: ClientError) -> tuple[str, str]:
    """The error's name and Cause as Step Functions has them."""
    code, said = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    metadata = error.response["ResponseMetadata"]
    client = _java_client(model.service_id)
    modelled = {
        shape.metadata.get("error", {}).get("code", shape.name): shape.name
        for shape in operation.error_shapes
    }
    name = modelled[code].removesuffix("Exception") if code in modelled else client
    ids = f"Request ID: {metadata.get('RequestId', '')}"
    if "HostId" in metadata:
        ids += f", Extended Request ID: {metadata['HostId']}"
    cause = f"{said} (Service: {client}, Status Code: {metadata['HTTPStatusCode']}, {ids})"
    return f"{client}.{name}Exception", cause


def _java_client(service_id: str) -> str:
    """The Java 2 client's name of a service id: S3, DynamoDb, CloudWatchLogs, Sfn."""
    words = re.findall(r"[A-Z]+\d*(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", service_id)
    return "".join(word[:1].upper() + word[1:].lower() for word in words)
