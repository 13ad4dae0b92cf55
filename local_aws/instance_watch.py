"""What happens around a running job: its checkpoints are copied now and then, and its instance may go.

One thread for each instance that a job gets. It ends with the job's process, or with the fault that ends it.
"""

import logging
import threading

from local_aws.checkpoint_sync import COPY_FAILED, CheckpointSync
from local_aws.faults import HOST_LOST, INTERRUPTED, LOOK_S, Fault
from local_aws.host import Host
from local_aws.job_container import JobContainer
from local_aws.job_process import JobProcess

_log = logging.getLogger("local_aws.instance_watch")


class InstanceWatch:
    """Watches from now on. Call `end` once the process has ended."""

    def __init__(
        self,
        job: str,
        host: Host,
        process: JobProcess | JobContainer,
        checkpoints: CheckpointSync | None,
    ) -> None:
        self._job = job
        self._host = host
        self._process = process
        self._checkpoints = checkpoints
        self._over = threading.Event()
        self._fault: Fault | None = None
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name=f"watch-{job}", daemon=True)
        self._thread.start()

    def end(self) -> Fault | None:
        """The fault that took the instance away, if one did. Raises what went wrong with watching."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._fault

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                self._fault = self._host.faults.take(self._job, INTERRUPTED, HOST_LOST)
                if self._fault is not None:
                    self._take_away(self._fault)
                    return
                self._copy()
        except Exception as error:  # noqa: BLE001 - raised on the job's thread, which it ends
            self._failure = error
            self._process.kill()

    def _take_away(self, fault: Fault) -> None:
        if fault.fault == INTERRUPTED and fault.sigterm:
            self._process.terminate()
            if self._over.wait(self._host.settings.stop_grace_s):
                return
        self._process.kill()

    def _copy(self) -> None:
        if self._checkpoints is None:
            return
        try:
            self._checkpoints.copy()
        except COPY_FAILED as error:  # tried again; the last copying is the one that must succeed
            _log.warning("job=%s checkpoints not copied: %s", self._job, error)
