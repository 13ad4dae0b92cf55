"""A service that speaks AWS's JSON protocol, added to ministack.

An operation is a function of the request's parameters and its caller. Anything else a client may call of
that service is refused by name: a silent empty answer would pass for success.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import ministack.app
from ministack.core import router
from ministack.core.responses import error_response_json, json_response

from local_aws.iam import AccessDenied, Caller

Operation = Callable[[dict[str, Any], Caller], dict[str, Any]]
Response = tuple[int, dict[str, str], bytes]
Handler = Callable[[str, str, dict[str, str], bytes, dict[str, Any]], Awaitable[Response]]

REFUSED, REFUSED_STATUS = "UnsupportedOperation", 501  # no status that an SDK would retry


class ApiError(Exception):
    """An answer other than success; `code` is the name a client catches."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def install(service: str, target_prefix: str, operations: Mapping[str, Operation]) -> None:
    """Route calls whose X-Amz-Target is `target_prefix`.Operation to `operations`."""
    router.SERVICE_PATTERNS[service] = {"target_prefixes": [f"{target_prefix}."]}
    ministack.app.SERVICE_HANDLERS[service] = _handler(service, operations)


def _handler(service: str, operations: Mapping[str, Operation]) -> Handler:
    async def handle(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Response:
        operation = operations.get(_target(headers))
        if operation is None:
            return refusal(call_name(service, method, path, headers))
        caller = Caller(router.extract_access_key_id(headers, query))
        # Operations wait for disks, processes and this very server; the loop must stay free for that.
        return await asyncio.to_thread(_answer, operation, body, caller)

    return handle


def _answer(operation: Operation, body: bytes, caller: Caller) -> Response:
    try:
        response: Response = json_response(operation(json.loads(body or b"{}"), caller))
    except ApiError as error:
        response = error_response_json(error.code, error.message)
    except AccessDenied as error:
        response = error_response_json("AccessDeniedException", str(error))
    return response


def call_name(service: str, method: str, path: str, headers: dict[str, str]) -> str:
    """A call for people: its operation where the protocol names one, else what HTTP shows of it."""
    target = _target(headers)
    return f"{service}:{target}" if target else f"{service}, {method} {path}"


def refused(call: str) -> str:
    return f"local_aws does not emulate {call}; on AWS this call may well work"


def refusal(call: str) -> Response:
    """The answer to a call that nobody here emulates."""
    response: Response = error_response_json(REFUSED, refused(call), REFUSED_STATUS)
    return response


def _target(headers: dict[str, str]) -> str:
    return headers.get("x-amz-target", "").rsplit(".", 1)[-1]
