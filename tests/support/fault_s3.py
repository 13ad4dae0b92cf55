"""A small S3 server that misbehaves by schedule: the answers real S3 gives now and then.

Faults are data: (verb, end of the key, which of the matching requests, what happens). A test
asserts `fired`, so that it cannot pass by missing its fault.
"""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

# What can happen to a request. The object is stored only where the name says so.
REFUSED_409 = "409, nothing stored"
REFUSED_503 = "503, nothing stored"
DENIED = "403, nothing stored"
LOST_ANSWER = "stored, then the connection is closed without an answer"
STORED_503 = "stored, then 503"
RIVAL_FIRST = "somebody else's bytes are stored just before"
TRUNCATED = "the first half of the bytes, as if that were all"
FLIPPED_BIT = "one bit of the answer differs"

RIVAL = b'{"written by": "a rival"}'


@dataclass
class Fault:
    verb: str
    key_end: str
    what: str
    times: int = 1
    fired: int = 0


@dataclass
class FaultS3:
    """The server. Use as a context; `address` is then its URL."""

    faults: list[Fault] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "FaultS3":
        handler = type("Handler", (_Handler,), {"s3": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take_fault(self, verb: str, key: str) -> str | None:
        with self.lock:
            self.requests.append((verb, key))
            for fault in self.faults:
                if fault.verb == verb and key.endswith(fault.key_end) and fault.fired < fault.times:
                    fault.fired += 1
                    return fault.what
        return None

    def all_fired(self) -> bool:
        return all(fault.fired > 0 for fault in self.faults)


class _Handler(BaseHTTPRequestHandler):
    s3: FaultS3
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        key = self._key()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.s3.take_fault("PUT", key)
        if fault in (REFUSED_409, REFUSED_503, DENIED):
            assert fault is not None
            return self._answer(int(fault[:3]), _error(fault))
        with self.s3.lock:
            if fault == RIVAL_FIRST:
                self.s3.objects.setdefault(key, RIVAL)
            exists = self.headers.get("If-None-Match") == "*" and key in self.s3.objects
            if not exists:
                self.s3.objects[key] = body
        if fault == LOST_ANSWER:
            self.close_connection = True
            return None
        if fault == STORED_503:
            return self._answer(503, _error("SlowDown"))
        if exists:
            return self._answer(412, _error("PreconditionFailed"))
        return self._answer(200, b"", ETag='"0"')

    def do_GET(self) -> None:
        key = self._key()
        fault = self.s3.take_fault("GET", key)
        if fault in (REFUSED_503, DENIED):
            assert fault is not None
            return self._answer(int(fault[:3]), _error(fault))
        with self.s3.lock:
            data = self.s3.objects.get(key)
        if data is None:
            return self._answer(404, _error("NoSuchKey"))
        size = len(data)
        if fault == TRUNCATED:
            data = data[: size // 2]
            size = len(data)
        span = self.headers.get("Range")
        if span is None:
            return self._answer(200, data, ETag='"0"')
        start, end = (int(part) for part in span.removeprefix("bytes=").split("-"))
        if start >= size:
            return self._answer(416, _error("InvalidRange"))
        data = bytearray(data[start : end + 1])
        if fault == FLIPPED_BIT:
            data[len(data) // 2] ^= 1
        where = f"bytes {start}-{start + len(data) - 1}/{size}"
        return self._answer(206, bytes(data), ETag='"0"', Content_Range=where)

    def do_HEAD(self) -> None:
        with self.s3.lock:
            data = self.s3.objects.get(self._key())
        if data is None:
            return self._answer(404, b"")
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        return self.end_headers()

    def _key(self) -> str:
        """Path style: /bucket/key. A listing is of the bucket, and has no key."""
        parts = unquote(urlsplit(self.path).path).split("/", 2)
        return parts[2] if len(parts) > 2 else ""

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by schedule</Message></Error>".encode()
