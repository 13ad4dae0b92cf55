"""A call to a service that nobody here emulates is refused by name.

ministack answers such a call with text that no SDK can read, so that its client reports a bare 400 or a
parser's error. Calls that a known service doesn't know are refused by ministack, by name too.
"""

from typing import Any
from urllib.parse import parse_qs

import ministack.app

from local_aws.json_service import Handler, Response, refusal


class _Handlers(dict[str, Handler]):
    """ministack's table of services, with an answer for those that aren't in it."""

    def get(self, service: str, default: Any = None) -> Any:
        return super().get(service, default) or _refuser(service)


def install() -> None:
    """After everything that adds a service."""
    ministack.app.SERVICE_HANDLERS = _Handlers(ministack.app.SERVICE_HANDLERS)


def _refuser(service: str) -> Handler:
    async def refuse(
        method: str, path: str, headers: dict[str, str], body: bytes, _query: dict[str, Any]
    ) -> Response:
        if "x-www-form-urlencoded" in headers.get("content-type", ""):
            return _xml(f"{service}:{parse_qs(body.decode()).get('Action', ['?'])[0]}")
        target = headers.get("x-amz-target", "").rsplit(".", 1)[-1]
        return refusal(f"{service}:{target}" if target else f"{service}, {method} {path}")

    return refuse


def _xml(call: str) -> Response:
    """The refusal for services of the query protocol, whose clients read errors from XML alone."""
    body = (
        "<ErrorResponse><Error><Type>Sender</Type><Code>UnsupportedOperation</Code>"
        f"<Message>local_aws does not emulate {call}; on AWS this call may well work</Message></Error>"
        "<RequestId>00000000-0000-0000-0000-000000000000</RequestId></ErrorResponse>"
    )
    return 501, {"Content-Type": "text/xml"}, body.encode()
