"""The life of one training job: a local process between two copies of data.

    InProgress: Starting -> Downloading -> Training -> Uploading -> Completed | Failed
    Stopping (StopTrainingJob or MaxRuntimeInSeconds): SIGTERM, grace, SIGKILL -> Uploading -> Stopped

Statuses, their order and FailureReason are those of DescribeTrainingJob (SageMaker API reference). One
thread a job runs `_live`; everything else reads or asks under the lock.
"""

import contextvars
import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_aws.guard import Guard
from local_aws.iam import Session
from local_aws.job_container import JobContainer, Podman
from local_aws.job_folder import FAILURE_CHARACTERS, JobFailed, JobFolder
from local_aws.job_image import look_up
from local_aws.job_logs import JobLogs
from local_aws.job_process import JobProcess
from local_aws.settings import Settings

TERMINAL = ("Completed", "Failed", "Stopped")

_STATUS_MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds",
}

# SageMaker's words for a container that the kernel killed for its memory.
OUT_OF_MEMORY = (
    "ClientError: Please use an instance type with more memory, or reduce the size of job data processed on "
    "an instance"
)

_log = logging.getLogger("local_aws.training_job")


@dataclass(frozen=True)
class Host:
    """What jobs need of the server they run on."""

    settings: Settings
    guard: Guard
    podman: Podman | None = None  # where jobs run in an image


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
            message = message or _STATUS_MESSAGES[secondary]
            self._transitions.append({"Status": secondary, "StartTime": now, "StatusMessage": message})

    def _end(self, status: str, secondary: str, message: str | None = None) -> None:
        with self._lock:
            self._enter(secondary, message)
            self._transitions[-1]["EndTime"] = self._transitions[-1]["StartTime"]
            self.status = status
            self._ended.set()
        _log.info("job=%s status=%s secondary=%s reason=%r", self.name, status, secondary, message)

    def _live(self) -> None:
        try:
            self._prepare()
            self._train()
            self._enter("Uploading")
            artifacts = self._folder.upload_results(self._session, self.name)
            self._details["ModelArtifacts"] = {"S3ModelArtifacts": artifacts}
            if self._stopped_as:
                self._end("Stopped", self._stopped_as)
            else:
                self._end("Completed", "Completed")
        except JobFailed as failure:
            self._fail(str(failure))
        except Exception as error:  # noqa: BLE001 - the thread's boundary: a defect of ours must end the job
            _log.exception("job=%s", self.name)
            self._fail(f"InternalServerError: {error!r}")

    def _fail(self, reason: str) -> None:
        with self._lock:
            self._details["FailureReason"] = reason[:FAILURE_CHARACTERS]
            self._end("Failed", "Failed", self._details["FailureReason"])

    def _prepare(self) -> None:
        self._folder.lay_out()
        look_up(self.request["AlgorithmSpecification"]["TrainingImage"], self._session)
        self._enter("Downloading")
        self._folder.download_channels(self._session)

    def _train(self) -> None:
        logs = JobLogs(
            self._session, self.name, self.request["AlgorithmSpecification"].get("MetricDefinitions", [])
        )
        started = time.time()
        self._details["TrainingStartTime"] = started
        self._enter("Training")
        try:
            code = self._run_process(logs)
        finally:
            logs.close()
            ended = time.time()
            seconds = math.ceil(ended - started)
            self._details |= {
                "TrainingEndTime": ended,
                "TrainingTimeInSeconds": seconds,
                "BillableTimeInSeconds": seconds,
                "FinalMetricDataList": logs.final_metrics(),
            }
        if code != 0 and not self._stopped_as:
            raise JobFailed(self._algorithm_error(code))

    def _run_process(self, logs: JobLogs) -> int:
        try:
            with self._lock:
                if self._stopped_as:
                    return 0
                self._process = self._start_process(logs)
        except OSError as error:
            logs.add(str(error))
            return 127  # what a container's runtime reports for a command that isn't there
        limit_s = self.request["StoppingCondition"].get("MaxRuntimeInSeconds", 24 * 3600)
        timer = _after(limit_s, lambda: self.stop("MaxRuntimeExceeded"))
        code = self._process.wait()
        timer.cancel()
        return code

    def _start_process(self, logs: JobLogs) -> JobProcess | JobContainer:
        algorithm = self.request["AlgorithmSpecification"]
        argv = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", [])]
        guard, base = self._host.guard, self._folder.base
        if self._host.podman is not None:
            return JobContainer(
                self._host.podman,
                argv,
                name=self.name,
                base=base,
                env=self._environment(),
                guard=guard,
                on_line=logs.add,
            )
        settings = self._host.settings
        if argv[0] in ("python", "python3"):
            argv[0] = settings.job_python
        of_the_image = {
            "PATH": f"{Path(settings.job_python).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(base / "code"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": settings.project_root,
            "PYTHONUNBUFFERED": "1",
            "SAGEMAKER_BASE_DIR": str(base),
        }
        env = of_the_image | self._environment()
        return JobProcess(argv, cwd=base / "code", env=env, guard=guard, on_line=logs.add)

    def _environment(self) -> dict[str, str]:
        """Nothing of this machine's, but what SageMaker sets and what N jobs at once need."""
        return {
            # As many threads as cores in each of N jobs would leave a laptop with nothing but switching.
            "OMP_NUM_THREADS": "1",
            **self.request.get("Environment", {}),
            **self._session.environment(),
            "TRAINING_JOB_NAME": self.name,
            "TRAINING_JOB_ARN": self.arn,
        }

    def _algorithm_error(self, code: int) -> str:
        """SageMaker's wording: what the job wrote to output/failure, then how it ended."""
        if code < 0:
            ending = f", exit code: {128 - code} ({signal.Signals(-code).name})"
        else:
            ending = f", exit code: {code}"
        prefix = "AlgorithmError: "
        if isinstance(self._process, JobContainer) and self._process.out_of_memory:
            return f"{OUT_OF_MEMORY}{ending}"
        room = FAILURE_CHARACTERS - len(prefix) - len(ending)
        return f"{prefix}{self._folder.failure_text()[:room]}{ending}"


def _after(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer
