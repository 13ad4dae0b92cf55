"""Ends every process group of a server that died without ending them itself.

A server that is killed outright cannot stop its jobs, and a job that outlives it would train for nobody.
So the server starts this small process first and holds the writing end of its standard input: one line
`+PGID` a group started, `-PGID` a group ended. The pipe closes with the server, however it dies; what is
still on the list is then killed. Runs in a session of its own, so that Ctrl-C doesn't take it first.
"""

import os
import signal
import subprocess
import sys
import threading


class Guard:
    """The server's end. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__], stdin=subprocess.PIPE, start_new_session=True
        )

    def watch(self, pgid: int) -> None:
        """Raises ValueError after end_all."""
        self._tell(f"+{pgid}\n")

    def forget(self, pgid: int) -> None:
        self._tell(f"-{pgid}\n")

    def end_all(self) -> None:
        """Have every group killed but our own, and wait until that is done. Nothing can be watched after."""
        self.forget(os.getpgid(0))
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def _main() -> None:
    watched: set[int] = set()
    for line in sys.stdin:
        pgid = int(line[1:])
        if line[0] == "+":
            watched.add(pgid)
        else:
            watched.discard(pgid)
    for pgid in watched:
        try:
            os.killpg(pgid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended in the moment its server did


if __name__ == "__main__":
    _main()
