"""A call that nobody here emulates is refused by name.

ministack answers a call to a service it lacks with text that no SDK can read, so that its client reports a
bare 400 or a parser's error; and of S3's sub-resources, those it doesn't know pass for calls on the bucket or
the object itself and succeed. Other operations that a service doesn't know are refused by ministack.
"""

import xml.sax.saxutils
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import ministack.app

from local_aws.json_service import (
    REFUSED,
    REFUSED_STATUS,
    Handler,
    Response,
    call_name,
    refusal,
    refused,
)

# Sub-resources of S3's API that ministack 1.5.33 ignores, by the query parameter that names them.
_UNKNOWN_TO_S3 = {
    "abac",
    "analytics",
    "annotation",
    "intelligent-tiering",
    "inventory",
    "metadataAnnotationTable",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "renameObject",
    "select",
    "session",
    "torrent",
}


class _Handlers(dict[str, Handler]):
    """ministack's table of services, with an answer for those that aren't in it."""

    def get(self, service: str, default: Any = None) -> Any:
        return super().get(service, default) or _refuser(service)


def install() -> None:
    """After everything that adds a service."""
    handlers = _Handlers(ministack.app.SERVICE_HANDLERS)
    handlers["s3"] = _known_to_s3(handlers["s3"])
    ministack.app.SERVICE_HANDLERS = handlers


def _refuser(service: str) -> Handler:
    async def refuse(
        method: str, path: str, headers: dict[str, str], body: bytes, _query: dict[str, Any]
    ) -> Response:
        if "x-www-form-urlencoded" in headers.get("content-type", ""):
            call = f"{service}:{parse_qs(body.decode()).get('Action', ['?'])[0]}"
            return _xml(call, lambda error: f"<ErrorResponse>{error}</ErrorResponse>")
        return refusal(call_name(service, method, path, headers))

    return refuse


def _known_to_s3(handle: Handler) -> Handler:
    async def handle_if_known(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]
    ) -> Response:
        unknown = _UNKNOWN_TO_S3 & query.keys()
        if unknown:
            return _xml(f"s3, {method} {path}?{unknown.pop()}", lambda error: error)
        return await handle(method, path, headers, body, query)

    return handle_if_known


def _xml(call: str, envelope: Callable[[str], str]) -> Response:
    """The refusal for services whose clients read errors from XML alone."""
    error = (
        f"<Error><Type>Sender</Type><Code>{REFUSED}</Code>"
        f"<Message>{xml.sax.saxutils.escape(refused(call))}</Message></Error>"
    )
    return REFUSED_STATUS, {"Content-Type": "text/xml"}, envelope(error).encode()
