"""N replica processes on this machine, started together and ended together.

Each process is what a training job would run, with a folder of its own in place of /opt/ml.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trainer import layout

STOP_GRACE_S: Final = 10.0  # from SIGTERM to SIGKILL; a replica leaves at its next inner step or poll
_PR_SET_PDEATHSIG: Final = 1  # Linux prctl(2)


@dataclass
class Replica:
    """One process and how it ended, in SageMaker's words for a training job."""

    rank: int
    base: Path
    process: subprocess.Popen[bytes]
    asked_to_stop: bool = False

    @property
    def status(self) -> str:
        code = self.process.poll()
        if code is None:
            return "InProgress"
        if self.asked_to_stop:
            return "Stopped"
        return "Completed" if code == 0 else "Failed"

    def failure(self) -> str | None:
        """Why it failed: its own words, or the signal that killed it."""
        code = self.process.poll()
        if code in (None, 0):
            return None
        file = self.base / "output" / "failure"
        if file.exists():
            return file.read_text().strip()
        if code is not None and code < 0:
            return f"Killed: rank {self.rank}: the process was ended by {signal.Signals(-code).name}"
        return f"Failed: rank {self.rank}: exit code {code} and no reason given; see {self.base / 'log.txt'}"


@dataclass
class Gang:
    """All replicas of a run. Used as a context: on leaving, none is left running."""

    run_uri: str
    folder: Path
    size: int
    replicas: list[Replica] = field(default_factory=list)

    def __enter__(self) -> "Gang":
        for rank in range(self.size):
            self.replicas.append(self._start(rank))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def running(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.process.poll() is None]

    def failed(self) -> Replica | None:
        """A replica that failed by its own fault, if there is one; else one that failed for a peer's."""
        failed = [replica for replica in self.replicas if replica.status == "Failed"]
        return min(failed, key=lambda r: (r.failure() or "").startswith("PeerLost"), default=None)

    def wait(self, seconds: float) -> None:
        """Give replicas time to end by themselves."""
        deadline = time.monotonic() + seconds
        for replica in self.running():
            try:
                replica.process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                return

    def stop(self) -> None:
        """SIGTERM, a grace, SIGKILL; returns when no process is left."""
        for replica in self.running():
            replica.asked_to_stop = True
            replica.process.send_signal(signal.SIGTERM)
        self.wait(STOP_GRACE_S)
        for replica in self.running():
            replica.process.kill()
        for replica in self.replicas:
            replica.process.wait()

    def _start(self, rank: int) -> Replica:
        base = self.folder / f"rank_{rank:04d}"
        base.mkdir(parents=True, exist_ok=True)
        entrypoint = [sys.executable, "-m", "trainer.replica_entrypoint"]
        environ = os.environ | {
            layout.SAGEMAKER_BASE_ENV: str(base),
            # One thread each: N replicas share these cores, and a sum split over another number of
            # threads has other last bits, so that no two machines would agree.
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        parent = os.getpid()
        libc = ctypes.CDLL(None)

        def die_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before we could ask
                os._exit(1)

        with (base / "log.txt").open("wb") as log:
            # Its own session: Ctrl-C on the terminal reaches us alone, and we end the gang in order.
            process = subprocess.Popen(
                [*entrypoint, "--run", self.run_uri, "--rank", str(rank)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environ,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return Replica(rank, base, process)
