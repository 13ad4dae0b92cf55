"""The store of one schedule, which also does to processes what the schedule says.

A replica signs its requests with an access key that holds its process id (replica.py), so the
server knows whom a request comes from, and a process can be ended exactly between two of its
steps without a hook in the code under test.
"""

import json
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from tests.chaos.schedule import KILL_AFTER, KILL_BEFORE, KILL_LATE, STOP, Trigger
from tests.support.fault_s3 import Connection, FaultS3


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
        if fault == STOP:
            os.kill(process_of(headers), signal.SIGSTOP)
            self.s3.stopped(process_of(headers), fault.trigger)
        goes_on = super()._put(key, query, headers, body, fault)
        self.s3.stored(key)
        return goes_on

    def _store(self, key: str, headers: dict[str, str], body: bytearray) -> None:
        with self.s3.lock:
            if not (headers.get("if-none-match") == "*" and key in self.s3.objects):
                self.s3.objects[key] = body


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


def serve(triggers: tuple[Trigger, ...], objects: dict[str, bytes], pipe: Pipe) -> None:
    """Serve until told otherwise; then say what is in the store and which triggers have fired."""
    with ChaosS3(objects=dict(objects), triggers=triggers) as s3:
        pipe.send(s3.address)
        pipe.recv()
        kept = {key: bytes(data) for key, data in s3.objects.items() if key.endswith(".json")}
        with s3.lock:
            pipe.send({"objects": kept, "fired": s3.fired, "requests": len(s3.requests)})


def read(objects: dict[str, bytes], key: str) -> dict[str, Any] | None:
    data = objects.get(key)
    return None if data is None else json.loads(data)
