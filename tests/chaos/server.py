"""The store of one schedule, which also does to processes what the schedule says.

A replica signs its requests with an access key that holds its process id (replica.py), so the
server knows whom a request comes from, and a process can be ended exactly between two of its
steps without a hook in the code under test.
"""

import json
import multiprocessing
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.chaos import forking
from tests.chaos.schedule import KILL_AFTER, KILL_BEFORE, KILL_LATE, STOP, TERM, Trigger
from tests.support.fault_s3 import Connection, FaultS3
from trainer.layout import RunLayout
from trainer.run_spec import parse

STOPS_WITHIN_S: Final = 30.0


@dataclass
class ChaosS3(FaultS3):
    """As FaultS3, by the triggers of a schedule."""

    triggers: tuple[Trigger, ...] = ()
    fired: list[int] = field(default_factory=list)
    held: list[tuple[int, Trigger]] = field(default_factory=list)  # stopped processes

    def __post_init__(self) -> None:
        self.fired = [0] * len(self.triggers)

    def connection(self) -> type[Connection]:
        return _ChaosConnection

    def take_fault(self, verb: str, key: str) -> Any:
        with self.lock:
            self.requests.append((verb, key))
            for index, trigger in enumerate(self.triggers):
                matches = trigger.verb == verb and re.search(trigger.key, key) is not None
                if verb == "GET" and key not in self.objects:
                    continue  # there is nothing yet whose answer could go wrong
                if matches and self.fired[index] < trigger.times:
                    self.fired[index] += 1
                    return _TriggeredFault(trigger)
        return None

    def stopped(self, process: int, trigger: Trigger) -> None:
        """Have a stopped process go on in time."""
        if trigger.until is None:
            threading.Timer(trigger.pause_s, _go_on, (process,)).start()
        else:
            self.held.append((process, trigger))

    def stored(self, key: str) -> None:
        """Let go on whoever was to be stopped until this key was put."""
        for process, trigger in [entry for entry in self.held if re.search(str(entry[1].until), key)]:
            self.held.remove((process, trigger))
            threading.Timer(trigger.pause_s, _go_on, (process,)).start()


class _TriggeredFault(str):
    """The name of a fault, which knows its trigger."""

    trigger: Trigger

    def __new__(cls, trigger: Trigger) -> "_TriggeredFault":
        made = super().__new__(cls, trigger.what)
        made.trigger = trigger
        return made


class _ChaosConnection(Connection):
    s3: ChaosS3

    def _put(
        self, key: str, query: dict[str, str], headers: dict[str, str], body: bytearray, fault: Any
    ) -> bool:
        if fault == KILL_AFTER:
            self._store(key, headers, body)
        if fault in (KILL_BEFORE, KILL_AFTER, KILL_LATE):
            os.kill(process_of(headers), signal.SIGKILL)
            if fault == KILL_LATE:
                time.sleep(fault.trigger.pause_s)
                self._store(key, headers, body)
            return False
        if fault == TERM:
            os.kill(process_of(headers), signal.SIGTERM)
        if fault == STOP:
            _stop(process_of(headers))
            self.s3.stopped(process_of(headers), fault.trigger)
        goes_on = super()._put(key, query, headers, body, fault)
        self.s3.stored(key)
        return goes_on

    def _store(self, key: str, headers: dict[str, str], body: bytearray) -> None:
        with self.s3.lock:
            if not (headers.get("if-none-match") == "*" and key in self.s3.objects):
                self.s3.objects[key] = body


def _stop(process: int) -> None:
    """Return when every thread stands still: on busy cores some run on for a while after the signal."""
    os.kill(process, signal.SIGSTOP)
    deadline_s = time.monotonic() + STOPS_WITHIN_S
    while any(_state_of(thread) not in ("T", None) for thread in Path(f"/proc/{process}/task").iterdir()):
        assert time.monotonic() < deadline_s, f"process {process} did not stop"
        time.sleep(0.001)


def _state_of(thread: Path) -> str | None:
    """Linux proc(5): the letter after the name in brackets; None for a thread that has ended."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def _go_on(process: int) -> None:
    """A stopped process can't have ended by itself, but the end of the schedule may have killed it."""
    try:
        os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return


def process_of(headers: dict[str, str]) -> int:
    """The process that signed a request."""
    found = re.search(r"Credential=PID(\d+)/", headers["authorization"])
    assert found is not None, headers
    return int(found[1])


def access_key() -> str:
    """What this process signs with, so that `process_of` finds it."""
    return f"PID{os.getpid()}"


@dataclass
class Found:
    """What a server had when it was asked: the JSON objects by key, and how often each trigger has fired."""

    objects: dict[str, bytes]
    fired: list[int]
    requests: int

    def read(self, key: str) -> dict[str, Any] | None:
        data = self.objects.get(key)
        return None if data is None else json.loads(data)


@dataclass
class RunServer:
    """A server in a process of its own, with the run.json of one run. Use as a context."""

    parameters: dict[str, Any]
    triggers: tuple[Trigger, ...] = ()
    keys: RunLayout = field(default_factory=lambda: RunLayout("chaos"))

    def __enter__(self) -> "RunServer":
        parameters = parse(self.parameters).model_dump()
        document = {"run_id": self.keys.run_id, "launch": "chaos", "parameters": parameters}
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = forking.fork()
        if self._process == 0:
            _serve({self.keys.run_file: json.dumps(document).encode()}, self.triggers, theirs)
        self.address = self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)

    def look(self) -> Found:
        self._pipe.send("look")
        found: Found = self._pipe.recv()
        return found

    def abort(self, reason: str | None) -> None:
        """As the state machine gives a run up: its abort marker, so that the others leave."""
        body = json.dumps({"run_id": self.keys.run_id, "by": "the harness", "reason": reason}).encode()
        url = f"{self.address}/bucket/{self.keys.abort}"
        request = urllib.request.Request(url, body, {"If-None-Match": "*"}, method="PUT")  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - our own server
        except urllib.error.HTTPError as error:
            if error.code != 412:  # somebody else gave the run up first
                raise


def _serve(objects: dict[str, bytes], triggers: tuple[Trigger, ...], pipe: Pipe) -> NoReturn:
    """Serve until killed; say what is there when asked."""
    try:
        with ChaosS3(objects=dict(objects), triggers=triggers) as s3:
            pipe.send(s3.address)
            while pipe.recv():
                with s3.lock:
                    kept = {key: bytes(data) for key, data in s3.objects.items() if key.endswith(".json")}
                    pipe.send(Found(kept, list(s3.fired), len(s3.requests)))
    finally:
        os._exit(1)
