"""A fast S3 server on loopback that misbehaves by schedule: what real S3 does now and then.

    with FaultS3([Fault("PUT", "roster.json", LOST_ANSWER)]) as s3: ... s3.address ...
    python -m tests.support.fault_s3 [--upload-mb-per-s N]      # a process of its own, for benchmarks

Enough of S3 for this project: objects, ranges, If-None-Match, multipart uploads with abort and
listing, ListObjectsV2 in pages. Bodies are received into one buffer and sent from it, so that it
keeps up with fast clients. Faults are data; a test asserts `all_fired`, so that it cannot pass by
missing its fault.
"""

import argparse
import base64
import re
import socket
import socketserver
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from awscrt import checksums

from tests.support import s3_answers, s3_faults
from tests.support.s3_answers import error, head
from tests.support.s3_faults import Fault


@dataclass
class Upload:
    """A multipart upload that is neither completed nor aborted."""

    key: str
    parts: dict[int, bytes | bytearray] = field(default_factory=dict)


@dataclass
class FaultS3:
    """The server. Use as a context; `address` is then its URL."""

    faults: list[Fault] = field(default_factory=list)
    objects: dict[str, bytes | bytearray] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)  # (verb, key)
    uploads: dict[str, Upload] = field(default_factory=dict)  # by id
    # For benchmarks: how long each request takes before its answer, and each body up or down.
    latency_s: float = 0.0
    upload_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    lock: threading.Condition = field(default_factory=threading.Condition)  # of requests and objects

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
            self.lock.notify_all()
            return next((fault.what for fault in self.faults if fault.strikes(verb, key)), None)

    def wait_for(self, key: str, unless: Callable[[], bool] = bool) -> None:
        """Return once there is an object of this key, or at a notice of `lock` when `unless` says so."""
        with self.lock:
            assert self.lock.wait_for(lambda: key in self.objects or unless(), timeout=60), f"no {key}"

    def store(self, key: str, data: bytes | bytearray) -> None:
        """Put an object; hold the lock."""
        self.objects[key] = data
        self.lock.notify_all()

    def all_fired(self) -> bool:
        return all(fault.fired > 0 for fault in self.faults)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-request is nobody's fault here; anything else is to be seen."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


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
        if self.s3.latency_s:
            time.sleep(self.s3.latency_s)
        fault = self.s3.take_fault(verb, key)
        if fault in s3_faults.REFUSALS:
            assert fault is not None
            return self._answer(int(fault[:3]), error(fault[:3]))
        if fault == s3_faults.NO_ANSWER:
            while self.request.recv(65536):
                pass
            return False
        if fault == s3_faults.RESET:
            return self._reset()
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
            return self._answer(400, error("BadDigest"))
        exists = False
        with self.s3.lock:
            if "partNumber" in query:
                upload = self.s3.uploads.get(query["uploadId"])
                if upload is None:
                    return self._answer(404, error("NoSuchUpload"))
                upload.parts[int(query["partNumber"])] = body
            else:
                if fault == s3_faults.RIVAL_FIRST:
                    self.s3.objects.setdefault(key, s3_faults.RIVAL)
                exists = headers.get("if-none-match") == "*" and key in self.s3.objects
                if not exists:
                    self.s3.store(key, body)
        if fault == s3_faults.LOST_ANSWER:
            return False
        if fault == s3_faults.STORED_503:
            return self._answer(503, error("SlowDown"))
        return self._answer(412, error("PreconditionFailed")) if exists else self._answer(200)

    def _post(self, key: str, query: dict[str, str], _h: Any, body: bytearray, fault: Any) -> bool:
        with self.s3.lock:
            if "uploads" in query:
                number = uuid.uuid4().hex
                self.s3.uploads[number] = Upload(key)
                answer = s3_answers.upload_begun(number)
            else:
                upload = self.s3.uploads.pop(query["uploadId"], None)
                if upload is None:
                    return self._answer(404, error("NoSuchUpload"))
                named = [int(number) for number in re.findall(rb"<PartNumber>(\d+)<", body)]
                if refusal := s3_answers.wrong_parts(named, upload.parts):
                    return self._answer(400, error(refusal))
                self.s3.store(key, b"".join(upload.parts[number] for number in named))
                answer = s3_answers.upload_completed(key)
        return False if fault == s3_faults.LOST_ANSWER else self._answer(200, answer)

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
            return self._answer(200, self._listing(query), fault)
        with self.s3.lock:
            data = self.s3.objects.get(key)
        if data is None:
            return self._answer(404, error("NoSuchKey"))
        whole = memoryview(data)
        if fault == s3_faults.TRUNCATED:
            whole = whole[: len(whole) // 2]
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        if span is None:
            return self._answer(200, whole, fault)
        start, end = int(span[1]), min(int(span[2] or len(whole)) + 1, len(whole))
        if start >= len(whole):
            return self._answer(416, error("InvalidRange"))
        return self._answer(206, whole[start:end], fault, f"bytes {start}-{end - 1}/{len(whole)}")

    def _head(self, key: str, _q: Any, _h: Any, _body: bytearray, _fault: Any) -> bool:
        with self.s3.lock:
            data = self.s3.objects.get(key)
        self.request.sendall(head(404, 0) if data is None else head(200, len(data)))
        return True

    def _listing(self, query: dict[str, str]) -> bytes:
        with self.s3.lock:
            if "uploads" in query:
                return s3_answers.uploads({number: upload.key for number, upload in self.s3.uploads.items()})
            sizes = {key: len(data) for key, data in self.s3.objects.items()}
        return s3_answers.page(sizes, query)

    def _answer(
        self, status: int, body: bytes | memoryview = b"", fault: str | None = None, span: str | None = None
    ) -> bool:
        if fault == s3_faults.FLIPPED_BIT and body:
            damaged = bytearray(body)
            damaged[len(damaged) // 2] ^= 1
            body = damaged
        if self.s3.download_bytes_per_s:
            time.sleep(len(body) / self.s3.download_bytes_per_s)
        self.request.sendall(head(status, len(body), span))
        if fault == s3_faults.RESET_MID_BODY:
            self.request.sendall(body[: len(body) // 2])
            return self._reset()
        if fault == s3_faults.SLOW_DRIP:
            for piece in range(8):
                self.request.sendall(body[piece * len(body) // 8 : (piece + 1) * len(body) // 8])
                time.sleep(0.05)
            return True
        self.request.sendall(body)
        return True

    def _reset(self) -> bool:
        """Have the connection end by RST, as that of a server that dies."""
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return False


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
