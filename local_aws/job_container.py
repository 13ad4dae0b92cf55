"""A training job in its image: one podman container, run the way SageMaker runs it.

Entry point and arguments replace the image's, the job's folder is /opt/ml, and PID 1 is the command itself.
The container hangs below a monitor of podman's, not below `podman run`: it is stopped and killed through
its PID 1, which ends everything inside (pid_namespaces(7)).
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_aws.guard import Guard
from local_aws.job_folder import CONTAINER_BASE, JobFailed

_PODMAN: Final = "podman"  # whichever the PATH has
LABEL: Final = "local_aws.job"
START_TIMEOUT_S: Final = 60.0  # until the command runs: under a second on an idle machine
LOOK_S: Final = 0.01
ENGINE_FAILED: Final = 125  # podman-run(1), "Exit status": the fault was podman's, not the command's
KILLED: Final = 128 + signal.SIGKILL


@dataclass(frozen=True)
class Podman:
    """How containers of one server are made."""

    image: str  # run for every job, whatever image the job names
    network: str  # podman's --network
    memory: str | None = None  # podman's --memory; no limit otherwise

    def options(self) -> list[str]:
        # `never`: an image that isn't here is an error, not a download.
        options = ["--pull", "never", "--network", self.network, "--log-driver", "none"]
        if self.memory:
            options += ["--memory", self.memory, "--memory-swap", self.memory]
        return options


class JobContainer:
    """A running container. Its output goes to `on_line`, line by line, on a thread of its own."""

    def __init__(
        self,
        podman: Podman,
        argv: Sequence[str],
        *,
        name: str,
        base: Path,
        env: Mapping[str, str],
        guard: Guard,
        on_line: Callable[[str], None],
    ) -> None:
        """Raises OSError where podman cannot be started."""
        # Job names are unique in an account; containers of several accounts lie side by side.
        self._name = f"{name}-{os.getpid()}"
        self._guard = guard
        self._limited = podman.memory is not None
        self._killed = False
        self._last_line = ""
        self.out_of_memory = False
        # Not removed before the end: podman's monitor reads it after the runtime has written it.
        self._pid_file = base.parent / f".{name}.pid"
        command = [
            *(_PODMAN, "run", "--name", self._name, "--label", LABEL, "--pidfile", str(self._pid_file)),
            *podman.options(),
            *("--volume", f"{base}:{CONTAINER_BASE}"),
            *(part for name_, value in env.items() for part in ("--env", f"{name_}={value}")),
            *("--entrypoint", json.dumps(list(argv[:1])), podman.image, *argv[1:]),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(on_line,), daemon=True)
        self._reader.start()
        self._init = self._wait_for_init()
        try:
            for pgid in self._groups():
                guard.watch(pgid)
        except ValueError:  # the server is ending: this container has missed its end
            self.kill()
            raise

    def wait(self) -> int:
        """The exit status of the command, as podman has it: 128 and more for a signal.

        Raises JobFailed where podman itself failed, e.g. because the image has been removed.
        """
        code = self._process.wait()
        self._reader.join()
        for pgid in self._groups():
            self._guard.forget(pgid)
        # podman's own State.OOMKilled stays false with conmon 2.1 and control groups of version 1. Where
        # there is a limit, though, nobody but the kernel and this class kills PID 1.
        self.out_of_memory = self._limited and not self._killed and code == KILLED
        _podman("rm", "--force", self._name)
        self._pid_file.unlink(missing_ok=True)
        if code == ENGINE_FAILED:
            raise JobFailed(f"InternalServerError: podman could not run the job: {self._last_line}")
        return code

    def terminate(self) -> None:
        """SIGTERM to PID 1, which without a handler for it never hears of it."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._init is not None and self._process.poll() is None:
            try:
                os.kill(self._init, number)
            except ProcessLookupError:
                return

    def _groups(self) -> list[int]:
        # A container's first process leads a session of its own (runc calls setsid for it).
        return [self._process.pid, *([self._init] if self._init is not None else [])]

    def _wait_for_init(self) -> int | None:
        """PID 1's number on this machine; None if the command could not be started or has ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._pid_file.exists() and (text := self._pid_file.read_text().strip()):
                return int(text)
            if self._process.poll() is not None:
                return None
            time.sleep(LOOK_S)
        self._process.kill()
        return None

    def _read(self, on_line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._last_line = line.decode("utf-8", "replace").rstrip("\n")
                on_line(self._last_line)


def remove_leftovers() -> None:
    """Remove containers that servers killed outright have left: stopped ones, an hour old."""
    _podman("container", "prune", "--force", "--filter", f"label={LABEL}", "--filter", "until=1h")


def _podman(*arguments: str) -> str:
    """What podman prints; nothing where it fails, since the container may be gone."""
    return subprocess.run([_PODMAN, *arguments], capture_output=True, text=True, check=False).stdout
