"""Metrics to an MLflow tracking server, where the environment names one.

`environment` of the run parameters is where a user gives MLFLOW_TRACKING_URI (and
MLFLOW_EXPERIMENT_NAME). The package is optional: install mlflow-skinny in the image, or in your
source archive. Rank 0 speaks for the run. A tracking server that fails costs the metrics that it
missed and one line of the log, never the run.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from trainer.rendezvous.manager import ObjectStoreManager
from trainer.run_spec import InvalidRunParameters, RunSpec

log: Final = logging.getLogger(__name__)

TRACKING_URI_ENV: Final = "MLFLOW_TRACKING_URI"  # MLflow's own names
EXPERIMENT_ENV: Final = "MLFLOW_EXPERIMENT_NAME"
DEFAULT_EXPERIMENT: Final = "diloco"
RUN_TAG: Final = "diloco.run_id"  # by which a relaunched rank 0 finds the MLflow run of its earlier life


def mlflow_sink(manager: ObjectStoreManager, rank: int, spec: RunSpec) -> "MlflowSink | None":
    """The sink where MLFLOW_TRACKING_URI is set and this is rank 0.

    Raises InvalidRunParameters where the package is missing: who asks for MLflow wants to be told.
    """
    if rank != 0 or not os.environ.get(TRACKING_URI_ENV):
        return None
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise InvalidRunParameters(
            {"environment": f"sets {TRACKING_URI_ENV}, but mlflow is not installed here ({error}); add "
             "mlflow-skinny to container/requirements.txt, or leave the variable out"}
        ) from error  # fmt: skip
    return MlflowSink(manager, spec, MlflowClient)


class MlflowSink:
    """Writes on the thread that writes to the store, so that no inner step waits for the server."""

    def __init__(self, manager: ObjectStoreManager, spec: RunSpec, client_class: Any) -> None:
        self._manager = manager
        self._spec = spec
        self._client_class = client_class
        self._client: Any = None
        self._run_id: str | None = None
        self._broken = False

    def write(self, inner_step: int, values: Mapping[str, float]) -> None:
        self._manager.later(lambda: self._try(lambda: self._write(inner_step, dict(values))))

    def close(self) -> None:
        """Called where writes to the store are made, after them."""
        self._try(self._finish)

    def _finish(self) -> None:
        run_id = self._started()
        self._client.set_terminated(run_id)

    def _write(self, inner_step: int, values: Mapping[str, float]) -> None:
        run_id = self._started()
        for name, value in values.items():
            self._client.log_metric(run_id, name, value, step=inner_step)

    def _started(self) -> str:
        """The MLflow run of this run, made or found at the first use."""
        if self._run_id is None:
            self._client = self._client_class()
            name = os.environ.get(EXPERIMENT_ENV) or DEFAULT_EXPERIMENT
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            ours = self._manager.log.run_id
            earlier = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{ours}'", max_results=1)
            if earlier:
                self._run_id = str(earlier[0].info.run_id)
            else:
                made = self._client.create_run(experiment, run_name=ours, tags={RUN_TAG: ours})
                for parameter, value in self._spec.trainer_parameters().items():
                    self._client.log_param(made.info.run_id, parameter, value)
                self._run_id = str(made.info.run_id)
        return self._run_id

    def _try(self, write: Any) -> None:
        if self._broken:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001 - whatever a server or its client can come up with
            self._broken = True
            log.warning("event=mlflow_given_up run=%s: %s", self._manager.log.run_id, error)
