"""Saying "I am alive, and this far": the progress object, and what else may wait to be written.

One background thread per process. It overwrites `progress/rank_RRRR.json` whenever there is
news, which is what peers go by when they wait (rule 11), and writes events and metrics that
the training thread hands over, so that no inner step ever waits for the store (rule 13).

The heartbeat follows the training thread's own steps, never this thread's clock alone: a
replica whose training hangs must look dead.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from trainer.rendezvous.errors import RendezvousError, StoreFailed
from trainer.rendezvous.run_log import RunLog

EVERY_S: Final = 5.0
log = logging.getLogger(__name__)


class ProgressReporter:
    """Publishes one rank's progress. Call `close` at the end; the last word is then written."""

    def __init__(self, run_log: RunLog, rank: int, claim: int, *, every_s: float = EVERY_S) -> None:
        self._log = run_log
        self._rank = rank
        self._every_s = every_s
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._closing = threading.Event()
        self._progress: dict[str, Any] = {
            "run_id": run_log.run_id, "rank": rank, "claim": claim, "state": "starting",
            "round": 0, "inner_step": 0,
        }  # fmt: skip
        self._written: dict[str, Any] = {}
        self._queue: list[Callable[[], object]] = []
        self.failure: RendezvousError | None = None
        self._flush()  # a peer that waits must learn of this process at once
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)
        self._thread.start()

    def update(self, **fields: Any) -> None:
        """Note news; written within a few seconds."""
        with self._lock:
            self._progress |= fields

    def later(self, write: Callable[[], object]) -> None:
        """Have something written soon, in the order of the calls."""
        with self._lock:
            self._queue.append(write)
        self._news.set()

    def close(self, state: str) -> None:
        """Write everything that is left, `state` included. Raises what stood in the way."""
        self.update(state=state)
        self._closing.set()
        self._news.set()
        self._thread.join()
        self._flush()
        if self.failure is not None:
            raise self.failure

    def _work(self) -> None:
        while not self._closing.is_set():
            self._news.wait(self._every_s)
            self._news.clear()
            try:
                self._flush()
            except StoreFailed as error:
                # Not worth ending a replica: peers only see this one stand still a little longer.
                log.warning("progress not written rank=%d: %s", self._rank, error)
            except RendezvousError as error:
                self.failure = error
                return

    def _flush(self) -> None:
        with self._lock:
            queue, self._queue = self._queue, []
            progress = dict(self._progress)
        for write in queue:
            write()
        if progress != self._written:
            body = json.dumps(progress, sort_keys=True).encode()
            self._log.store.put(self._log.keys.progress(self._rank), body)
            self._written = progress
