"""What a replica reports of a round, said twice: a line for CloudWatch, a JSON line in the bucket.

The line is `name=value` pairs, which SageMaker's MetricDefinitions match (layout.metric_pattern)
and people can read; the names are layout.METRICS and no others.
"""

import json
import logging
from typing import Final

from trainer.layout import METRICS
from trainer.rendezvous.manager import ObjectStoreManager

log: Final = logging.getLogger("metrics")


class RoundMetrics:
    """Collects one rank's rounds. S3 has no append, so the file is written whole each time."""

    def __init__(self, manager: ObjectStoreManager, rank: int) -> None:
        self._manager = manager
        self._rank = rank
        self._lines: list[str] = []

    def report(self, *, round_index: int, inner_step: int, **values: float) -> None:
        """Print and store one round's metrics. Raises KeyError for a name that is not in layout.METRICS."""
        unknown = values.keys() - METRICS.keys()
        if unknown:
            raise KeyError(f"not in layout.METRICS: {sorted(unknown)}")
        where = {"rank": self._rank, "round": round_index, "inner_step": inner_step}
        log.info(" ".join(f"{name}={value:.6g}" for name, value in (where | values).items()))
        self._lines.append(json.dumps(where | values))
        body = "".join(f"{line}\n" for line in self._lines).encode()
        store, key = self._manager.log.store, self._manager.log.keys.metrics(self._rank)
        self._manager.later(lambda: store.put(key, body))
        self._manager.report(loss=values.get("train_loss"), tokens_per_s=values.get("tokens_per_s"))
