"""A fast S3 server on loopback that misbehaves by schedule: what real S3 does now and then.

    with FaultS3([Fault("PUT", "roster.json", LOST_ANSWER)]) as s3: ... s3.address ...
    python -m tests.support.fault_s3 [--upload-mb-per-s N]      # a process of its own, for benchmarks

Enough of S3 for this project: objects, ranges, If-None-Match, multipart uploads, ListObjectsV2.
Bodies are received into one buffer and sent from it, so that it keeps up with fast clients. Faults
are data; a test asserts `all_fired`, so that it cannot pass by missing its fault.
"""

import argparse
import base64
import re
import socket
import socketserver
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from awscrt import checksums

# What can happen to a request. An object is stored only where the name says so.
REFUSED_409 = "409, nothing stored"
REFUSED_500 = "500, nothing stored"
REFUSED_503 = "503, nothing stored"
DENIED = "403, nothing stored"
LOST_ANSWER = "stored, then the connection is closed without an answer"
STORED_503 = "503, though it was stored"
RIVAL_FIRST = "somebody else's bytes are stored just before"
TRUNCATED = "the first half of the object, as if that were all"
FLIPPED_BIT = "one bit of the answer differs"
RESET_MID_BODY = "half of the answer's body, then a reset"
SLOW_DRIP = "the answer's body in eight pieces with pauses"

REFUSALS = (REFUSED_409, REFUSED_500, REFUSED_503, DENIED)
RIVAL = b'{"written by": "a rival"}'


@dataclass
class Fault:
    """The next `times` requests of this verb whose key ends so."""

    verb: str
    key_end: str
    what: str
    times: int = 1
    fired: int = 0


@dataclass
class FaultS3:
    """The server. Use as a context; `address` is then its URL."""

    faults: list[Fault] = field(default_factory=list)
    objects: dict[str, bytes | bytearray] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)  # (verb, key)
    uploads: dict[str, dict[int, bytes | bytearray]] = field(default_factory=dict)
    upload_bytes_per_s: float | None = None  # each PUT's body takes this long; the benchmark of overlap
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "FaultS3":
        handler = type("Handler", (self.connection(),), {"s3": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def connection(self) -> type["Connection"]:
        """What serves a client; a subclass may know more faults."""
        return Connection

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


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-request is nobody's fault here."""


class Connection(socketserver.BaseRequestHandler):
    """One client's connection, kept alive over its requests."""

    s3: FaultS3

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffered = b""
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Serve a request; whether the connection goes on."""
        while b"\r\n\r\n" not in self._buffered:
            more = self.request.recv(65536)
            if not more:
                return False
            self._buffered += more
        head, _, self._buffered = self._buffered.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        verb, target, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if headers.get("expect", "").lower() == "100-continue":
            self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._body(int(headers.get("content-length", 0)))
        url = urlsplit(target)
        key = unquote(url.path).partition("/")[2].partition("/")[2]  # path style: /bucket/key
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        fault = self.s3.take_fault(verb, key)
        if fault in REFUSALS:
            assert fault is not None
            return self._answer(int(fault[:3]), _error(fault[:3]))
        return bool(getattr(self, f"_{verb.lower()}")(key, query, headers, body, fault))

    def _body(self, size: int) -> bytearray:
        body = bytearray(size)
        start, self._buffered = self._buffered[:size], self._buffered[size:]
        body[: len(start)] = start
        view, at = memoryview(body), len(start)
        while at < size:
            got = self.request.recv_into(view[at:])
            if not got:
                raise ConnectionError("the client went away")
            at += got
        return body

    def _put(
        self, key: str, query: dict[str, str], headers: dict[str, str], body: bytearray, fault: Any
    ) -> bool:
        if self.s3.upload_bytes_per_s:
            time.sleep(len(body) / self.s3.upload_bytes_per_s)
        expected = headers.get("x-amz-checksum-crc64nvme")
        if expected and base64.b64decode(expected) != checksums.crc64nvme(body).to_bytes(8, "big"):
            return self._answer(400, _error("BadDigest"))
        with self.s3.lock:
            if "partNumber" in query:
                self.s3.uploads[query["uploadId"]][int(query["partNumber"])] = body
                exists = False
            else:
                if fault == RIVAL_FIRST:
                    self.s3.objects.setdefault(key, RIVAL)
                exists = headers.get("if-none-match") == "*" and key in self.s3.objects
                if not exists:
                    self.s3.objects[key] = body
        if fault == LOST_ANSWER:
            return False
        if fault == STORED_503:
            return self._answer(503, _error("SlowDown"))
        return self._answer(412, _error("PreconditionFailed")) if exists else self._answer(200)

    def _post(self, key: str, query: dict[str, str], _h: Any, _body: bytearray, fault: Any) -> bool:
        with self.s3.lock:
            if "uploads" in query:
                upload = uuid.uuid4().hex
                self.s3.uploads[upload] = {}
                answer = f"<Result><UploadId>{upload}</UploadId></Result>"
            else:
                parts = self.s3.uploads.pop(query["uploadId"])
                self.s3.objects[key] = b"".join(parts[number] for number in sorted(parts))
                answer = f"<Result><Key>{escape(key)}</Key><ETag>0</ETag></Result>"
        return False if fault == LOST_ANSWER else self._answer(200, answer.encode())

    def _delete(self, key: str, query: dict[str, str], _h: Any, _body: bytearray, _fault: Any) -> bool:
        with self.s3.lock:
            if "uploadId" in query:
                self.s3.uploads.pop(query["uploadId"], None)
            else:
                self.s3.objects.pop(key, None)
        return self._answer(204)

    def _get(
        self, key: str, query: dict[str, str], headers: dict[str, str], _body: bytearray, fault: Any
    ) -> bool:
        if not key:
            return self._list(query)
        with self.s3.lock:
            data = self.s3.objects.get(key)
        if data is None:
            return self._answer(404, _error("NoSuchKey"))
        whole = memoryview(data)
        if fault == TRUNCATED:
            whole = whole[: len(whole) // 2]
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if span is None:
            return self._answer(200, whole, fault)
        start, end = int(span[1]), min(int(span[2]) + 1, len(whole))
        if start >= len(whole):
            return self._answer(416, _error("InvalidRange"))
        return self._answer(206, whole[start:end], fault, f"bytes {start}-{end - 1}/{len(whole)}")

    def _head(self, key: str, _q: Any, _h: Any, _body: bytearray, _fault: Any) -> bool:
        with self.s3.lock:
            data = self.s3.objects.get(key)
        self.request.sendall(_head(404, 0) if data is None else _head(200, len(data)))
        return True

    def _list(self, query: dict[str, str]) -> bool:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        with self.s3.lock:
            found = {key: len(data) for key, data in self.s3.objects.items() if key.startswith(prefix)}
        folders = {
            key[: key.index(delimiter, len(prefix)) + 1]
            for key in found
            if delimiter and delimiter in key[len(prefix) :]
        }
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>0</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in sorted(found.items())
            if not (delimiter and delimiter in key[len(prefix) :])
        ]
        rows += [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)
        ]
        return self._answer(
            200,
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>".encode(),
        )

    def _answer(
        self, status: int, body: bytes | memoryview = b"", fault: str | None = None, span: str | None = None
    ) -> bool:
        if fault == FLIPPED_BIT:
            damaged = bytearray(body)
            damaged[len(damaged) // 2] ^= 1
            body = damaged
        self.request.sendall(_head(status, len(body), span))
        if fault == RESET_MID_BODY:
            self.request.sendall(body[: len(body) // 2])
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            return False
        if fault == SLOW_DRIP:
            for piece in range(8):
                self.request.sendall(body[piece * len(body) // 8 : (piece + 1) * len(body) // 8])
                time.sleep(0.05)
            return True
        self.request.sendall(body)
        return True


def _head(status: int, size: int, span: str | None = None) -> bytes:
    extra = f"Content-Range: {span}\r\n" if span else ""
    return (
        f'HTTP/1.1 {status} -\r\nContent-Length: {size}\r\nETag: "0"\r\n'
        f"Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n{extra}\r\n"
    ).encode()


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>by schedule</Message></Error>".encode()


def main() -> None:
    """Serve until standard input ends: a parent that dies takes the server along."""
    parser = argparse.ArgumentParser(description="A fast S3 server on loopback.")
    parser.add_argument("--upload-mb-per-s", type=float)
    given = parser.parse_args()
    speed = given.upload_mb_per_s * 1e6 if given.upload_mb_per_s else None
    with FaultS3(upload_bytes_per_s=speed) as s3:
        print(s3.address, flush=True)
        input()


if __name__ == "__main__":
    main()
