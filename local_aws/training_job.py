"""The life of one training job: a local process between two copies of data.

    InProgress: Starting -> Downloading -> Training -> Uploading -> Completed | Failed
    Stopping (StopTrainingJob or a limit on time): SIGTERM, grace, SIGKILL -> Uploading -> Stopped
    Interrupted (a spot instance taken back, on request): -> Starting, under the same name on another instance

Statuses, their order and FailureReason are those of DescribeTrainingJob (SageMaker API reference). One
thread a job runs `_live`; everything else reads or asks under the lock.
"""

import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from local_aws import faults, job_command
from local_aws.checkpoint_sync import COPY_FAILED, CheckpointSync
from local_aws.faults import Fault
from local_aws.host import Host
from local_aws.iam import Session
from local_aws.instance_watch import InstanceWatch
from local_aws.job_container import JobContainer
from local_aws.job_folder import FAILURE_CHARACTERS, JobFailed, JobFolder
from local_aws.job_image import look_up
from local_aws.job_logs import JobLogs
from local_aws.job_process import JobProcess
from local_aws.job_words import HOST_LOST, NO_CAPACITY, STATUS_MESSAGES, WAITING_FOR_CAPACITY

TERMINAL = ("Completed", "Failed", "Stopped")

_log = logging.getLogger("local_aws.training_job")


class TrainingJob:
    """One job. `describe` may be called at any time, from any thread."""

    def __init__(self, request: dict[str, Any], *, arn: str, session: Session, host: Host) -> None:
        self.name: str = request["TrainingJobName"]
        self.arn = arn
        self.request = request
        self.created = time.time()
        self.status = "InProgress"
        self._host = host
        self._session = session
        self._folder = JobFolder(host.settings.jobs_folder / self.name, request)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._process: JobProcess | JobContainer | None = None
        self._stopped_as: str | None = None  # the secondary status it will end with
        self._stop_asked = threading.Event()
        self._checkpoints: CheckpointSync | None = None
        self._trained_s = 0.0  # on the instances that it had so far
        self._details: dict[str, Any] = {}
        self._transitions: list[dict[str, Any]] = []
        self._enter("Starting")

    def start(self) -> None:
        context = contextvars.copy_context()  # account and region of the call that created the job
        threading.Thread(target=context.run, args=(self._live,), name=self.name, daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Whether the job has ended within `timeout_s`."""
        return self._ended.wait(timeout_s)

    def stop(self, ends_as: str = "Stopped") -> None:
        """SIGTERM now, SIGKILL after the grace; a job that ends or stops already is left alone."""
        with self._lock:
            if self._stopped_as or self.status in TERMINAL:
                return
            self._stopped_as = ends_as
            self._stop_asked.set()
            self.status = "Stopping"
            self._enter("Stopping")
            if self._process is not None:
                self._process.terminate()
                _after(self._host.settings.stop_grace_s, self._process.kill)

    def describe(self) -> dict[str, Any]:
        """DescribeTrainingJob's answer, with times in seconds since the epoch."""
        with self._lock:
            return {
                **{k: v for k, v in self.request.items() if k not in ("Tags", "SessionChainingConfig")},
                "TrainingJobArn": self.arn,
                "TrainingJobStatus": self.status,
                "SecondaryStatus": self._transitions[-1]["Status"],
                "SecondaryStatusTransitions": [dict(t) for t in self._transitions],
                "CreationTime": self.created,
                "LastModifiedTime": self._transitions[-1]["StartTime"],
                **self._details,
            }

    def _enter(self, secondary: str, message: str | None = None) -> None:
        with self._lock:
            now = time.time()
            if self._transitions:
                self._transitions[-1]["EndTime"] = now
            message = message or STATUS_MESSAGES[secondary]
            self._transitions.append({"Status": secondary, "StartTime": now, "StatusMessage": message})

    def _end(self, status: str, secondary: str, message: str | None = None) -> None:
        with self._lock:
            self._enter(secondary, message)
            self._transitions[-1]["EndTime"] = self._transitions[-1]["StartTime"]
            self.status = status
            self._ended.set()
        _log.info("job=%s status=%s secondary=%s reason=%r", self.name, status, secondary, message)

    def _live(self) -> None:
        limit_s = self.request["StoppingCondition"].get("MaxWaitTimeInSeconds")
        timer = _after(limit_s, lambda: self.stop("MaxWaitTimeExceeded")) if limit_s else None
        try:
            self._find_instance()
            while not self._stopped_as:
                self._prepare()
                lost = self._train()
                if lost is None:
                    break
                self._lose_instance(lost)
            self._finish()
        except JobFailed as failure:
            self._fail(str(failure))
        except Exception as error:  # noqa: BLE001 - the thread's boundary: a defect of ours must end the job
            _log.exception("job=%s", self.name)
            self._fail(f"InternalServerError: {error!r}")
        finally:
            if timer is not None:
                timer.cancel()

    def _finish(self) -> None:
        if "TrainingStartTime" in self._details:
            self._enter("Uploading")
            artifacts = self._folder.upload_results(self._session, self.name)
            self._details["ModelArtifacts"] = {"S3ModelArtifacts": artifacts}
        if self._stopped_as:
            self._end("Stopped", self._stopped_as)
        else:
            self._end("Completed", "Completed")

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._details["FailureReason"] = reason[:FAILURE_CHARACTERS]
            self._end("Failed", "Failed", self._details["FailureReason"])

    def _find_instance(self) -> None:
        """At once, unless somebody asked for a delay, or for none to be found."""
        if delay := self._host.faults.take(self.name, faults.DELAYED_START):
            self._enter("Starting", WAITING_FOR_CAPACITY)
            self._stop_asked.wait(delay.wait_s)
        if none := self._host.faults.take(self.name, faults.NO_CAPACITY):
            self._enter("Starting", WAITING_FOR_CAPACITY)
            if not self._stop_asked.wait(none.wait_s):
                raise JobFailed(NO_CAPACITY)

    def _lose_instance(self, fault: Fault) -> None:
        """Raises JobFailed unless the job may begin again on another one, which is then found."""
        if fault.fault == faults.HOST_LOST:
            raise JobFailed(HOST_LOST)
        if not self.request.get("EnableManagedSpotTraining", False):
            raise JobFailed(
                f"InternalServerError: {self.name} runs on no spot instance, which {fault} is for"
            )
        self._enter("Interrupted")
        if self._stop_asked.wait(fault.wait_s):
            return
        self._enter("Starting")
        self._folder.remove()

    def _prepare(self) -> None:
        self._folder.lay_out()
        look_up(self.request["AlgorithmSpecification"]["TrainingImage"], self._session)
        self._enter("Downloading")
        self._folder.download_channels(self._session)
        if config := self.request.get("CheckpointConfig"):
            self._checkpoints = CheckpointSync(
                self._session.client("s3"),
                config["S3Uri"],
                self._folder.checkpoints,
                job=self.name,
                faults=self._host.faults,
            )
            self._checkpoints.restore()

    def _train(self) -> Fault | None:
        """Run the command on this instance to its end; the fault that took the instance away, if one did.

        Raises JobFailed where the command itself has failed.
        """
        logs = JobLogs(
            self._session, self.name, self.request["AlgorithmSpecification"].get("MetricDefinitions", [])
        )
        started = time.time()
        self._details.setdefault("TrainingStartTime", started)
        self._enter("Training")
        try:
            code, fault = self._run_process(logs)
        finally:
            logs.close()
            ended = time.time()
            self._trained_s += ended - started
            seconds = math.ceil(self._trained_s)
            self._details |= {
                "TrainingEndTime": ended,
                "TrainingTimeInSeconds": seconds,
                "BillableTimeInSeconds": seconds,
                "FinalMetricDataList": logs.final_metrics(),
            }
        if fault is None or fault.sigterm:
            self._copy_checkpoints_at_last()
        if code != 0 and not self._stopped_as and fault is None:
            raise JobFailed(job_command.algorithm_error(code, self._folder, self._process))
        return fault

    def _copy_checkpoints_at_last(self) -> None:
        if self._checkpoints is not None:
            try:
                self._checkpoints.copy()
            except COPY_FAILED as error:
                raise JobFailed(f"ClientError: Artifact upload failed:Checkpoints: {error}") from error

    def _run_process(self, logs: JobLogs) -> tuple[int, Fault | None]:
        try:
            with self._lock:
                if self._stopped_as:
                    return 0, None
                self._process = job_command.start(
                    self._host,
                    self.request,
                    arn=self.arn,
                    session=self._session,
                    base=self._folder.base,
                    on_line=logs.add,
                )
        except OSError as error:
            logs.add(str(error))
            return 127, None  # what a container's runtime reports for a command that isn't there
        limit_s = self.request["StoppingCondition"].get("MaxRuntimeInSeconds", 24 * 3600) - self._trained_s
        timer = _after(limit_s, lambda: self.stop("MaxRuntimeExceeded"))
        watch = InstanceWatch(self.name, self._host, self._process, self._checkpoints)
        code = self._process.wait()
        timer.cancel()
        return code, watch.end()


def _after(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer
