"""A job's output, on its way to CloudWatch Logs and to its metrics.

The stream is `<job>/algo-1-<epoch ms>` of /aws/sagemaker/TrainingJobs, written with the execution role's
credentials: a role without logs permissions gets a job without logs, and nothing else. That is SageMaker's
way; the server's log says so here. Metrics are the last match of each MetricDefinition ("Define metrics",
developer guide).
"""

import logging
import queue
import re
import threading
import time
from typing import Any

from botocore.exceptions import ClientError

from local_aws.iam import Session

LOG_GROUP = "/aws/sagemaker/TrainingJobs"

# PutLogEvents takes 1 MiB and 10,000 events a call, and 256 KiB an event (CloudWatch Logs quotas).
BATCH_EVENTS = 500
EVENT_CHARACTERS = 60_000
FLUSH_S = 0.3

_log = logging.getLogger("local_aws.job_logs")


class JobLogs:
    """Takes lines from the job and ships them; `close` returns when the last one is there."""

    def __init__(self, session: Session, job_name: str, metric_definitions: list[dict[str, str]]) -> None:
        self.stream = f"{job_name}/algo-1-{int(time.time() * 1000)}"
        self._session = session
        self._patterns = {d["Name"]: re.compile(d["Regex"]) for d in metric_definitions}
        self._metrics: dict[str, dict[str, Any]] = {}
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._shipper = threading.Thread(target=self._ship, daemon=True)
        self._shipper.start()

    def add(self, line: str) -> None:
        now = time.time()
        self._lines.put({"timestamp": int(now * 1000), "message": line[:EVENT_CHARACTERS] or " "})
        for name, pattern in self._patterns.items():
            match = pattern.search(line)
            if match:
                self._record(name, match, now)

    def final_metrics(self) -> list[dict[str, Any]]:
        return list(self._metrics.values())

    def close(self) -> None:
        self._lines.put(None)
        self._shipper.join()

    def _record(self, name: str, match: re.Match[str], now: float) -> None:
        text = match.group(1) if match.re.groups else match.group(0)
        try:
            self._metrics[name] = {"MetricName": name, "Value": float(text), "Timestamp": now}
        except ValueError:
            _log.warning("stream=%s metric=%s matched %r, which is no number", self.stream, name, text)

    def _ship(self) -> None:
        logs = self._session.client("logs")
        try:
            self._create_stream(logs)
            while batch := self._next_batch():
                logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=self.stream, logEvents=batch)
        except ClientError as error:
            _log.warning("stream=%s gets no further lines: %s", self.stream, error)

    def _create_stream(self, logs: Any) -> None:
        try:
            logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=self.stream)
        except logs.exceptions.ResourceNotFoundException:
            self._create_group(logs)
            logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=self.stream)

    def _create_group(self, logs: Any) -> None:
        try:
            logs.create_log_group(logGroupName=LOG_GROUP)
        except logs.exceptions.ResourceAlreadyExistsException:
            return  # a job that started at the same moment was faster

    def _next_batch(self) -> list[dict[str, Any]]:
        """The lines of about FLUSH_S seconds; empty when there are none left for ever."""
        first = self._lines.get()
        if first is None:
            return []
        batch = [first]
        flush_at = time.monotonic() + FLUSH_S
        while len(batch) < BATCH_EVENTS:
            try:
                line = self._lines.get(timeout=max(0.0, flush_at - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                self._lines.put(None)
                break
            batch.append(line)
        return batch
