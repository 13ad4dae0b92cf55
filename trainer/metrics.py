"""What a replica reports of a round, said thrice: a line for CloudWatch, a JSON line in the bucket,
and TensorBoard events in the folder that SageMaker uploads; MLflow besides, where it is set up.

The line is `name=value` pairs, which SageMaker's MetricDefinitions match (layout.metric_pattern)
and people can read; the names are layout.METRICS and no others.
"""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from trainer.layout import METRICS, TENSORBOARD_FOLDER
from trainer.rendezvous.manager import ObjectStoreManager

log: Final = logging.getLogger("metrics")


class Sink(Protocol):
    """Somewhere else to report to. Called in turn, from the training thread or another."""

    def write(self, inner_step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class RoundMetrics:
    """Collects one rank's rounds. S3 has no append, so the file is written whole each time.

    A relaunched process goes on with what its earlier life reported; a round that it repeats takes
    the place of what was said of it. Safe to call from several threads.
    """

    def __init__(self, manager: ObjectStoreManager, rank: int, sinks: Sequence[Sink] = ()) -> None:
        self._manager = manager
        self._rank = rank
        self._sinks = sinks
        self._lock = threading.Lock()
        earlier = manager.log.store.find(manager.log.keys.metrics(rank)) or b""
        rows = [json.loads(line) for line in earlier.decode().splitlines()]
        self._rows: dict[int, dict[str, Any]] = {row["round"]: row for row in rows}

    def report(self, *, round_index: int, inner_step: int, **values: float) -> None:
        """Print and store a round's metrics; those that come later are added to the round's line.

        Raises KeyError for a name that is not in layout.METRICS.
        """
        unknown = values.keys() - METRICS.keys()
        if unknown:
            raise KeyError(f"not in layout.METRICS: {sorted(unknown)}")
        where = {"rank": self._rank, "round": round_index, "inner_step": inner_step}
        log.info(" ".join(f"{name}={value:.6g}" for name, value in (where | values).items()))
        with self._lock:
            known = self._rows.get(round_index, {}) if list(values) == ["eval_loss"] else {}
            self._rows[round_index] = where | known | values
            body = "".join(f"{json.dumps(self._rows[r])}\n" for r in sorted(self._rows)).encode()
            for sink in self._sinks:
                sink.write(inner_step, values)
        store, key = self._manager.log.store, self._manager.log.keys.metrics(self._rank)
        self._manager.later(lambda: store.put(key, body))
        shown = {"loss": values.get("train_loss"), "tokens_per_s": values.get("tokens_per_s")}
        self._manager.report(**{name: value for name, value in shown.items() if value is not None})

    def close(self) -> None:
        """Have the sinks write what they still hold, after all that is to be written before."""
        for sink in self._sinks:
            self._manager.later(sink.close)


def tensorboard_of(model_dir: Path, rank: int) -> "TensorBoard":
    """A rank's events, in TensorBoard's folder.

    That folder has the place beside `model_dir` where SageMaker looks for it; each rank has
    a folder of its own in it, which TensorBoard shows as one line of each graph.
    """
    return TensorBoard(model_dir.parent / TENSORBOARD_FOLDER / f"rank_{rank:04d}")


class TensorBoard:
    """Events for TensorBoard, in a folder of this rank's own."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        # SageMaker uploads the folder while the job runs, and a job that fails closes nothing.
        self._writer = SummaryWriter(str(folder), flush_secs=5)

    def write(self, inner_step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, inner_step)

    def close(self) -> None:
        self._writer.close()
