"""One process group of ours: started in a session of its own, read line by line, ended whole."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from local_aws.guard import Guard

OnLine = Callable[[str], None]


class JobProcess:
    """A running command. Its output goes to `on_line`, line by line, on a thread of its own."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], guard: Guard, on_line: OnLine
    ) -> None:
        """Raises OSError where the command cannot be started."""
        self._guard = guard
        self._process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            guard.watch(self._process.pid)
        except ValueError:  # the server is ending: this group has missed its end
            self.kill()
            raise
        self._reader = threading.Thread(target=self._read, args=(on_line,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> int:
        """The exit status of the command, below zero for the signal that ended it.

        Whatever it left running ends with it, as everything in a container does with PID 1.
        """
        code = self._process.wait()
        self.kill()
        self._guard.forget(self._process.pid)
        self._reader.join()
        return code

    def terminate(self) -> None:
        """SIGTERM to the command alone: a container's runtime tells PID 1 and nobody else."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to the whole group, which may have ended already."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _read(self, on_line: OnLine) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                on_line(line.decode("utf-8", "replace").rstrip("\n"))
