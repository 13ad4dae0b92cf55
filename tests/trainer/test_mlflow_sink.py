"""MLflow: a real client on a folder, a server that is not there, a package that is not there."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gang import manager
from trainer import train
from trainer.mlflow_sink import RUN_TAG, mlflow_sink
from trainer.rendezvous.object_store import ObjectStore
from trainer.run_spec import InvalidRunParameters, parse


def run(store: ObjectStore, folder: Path, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
    made = manager(store, rank, world_size)
    result = train.diloco_train(manager=made, rank=rank, world_size=world_size, model_dir=folder / "model")
    made._reporter.close("finished")
    return result


def test_rank_0s_metrics_and_parameters_are_one_mlflow_run(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder, for want of a server
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    result = run(store, tmp_path)
    run(store, tmp_path)  # a relaunched process with nothing left to do
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == found.data.tags[RUN_TAG] == "run"
    assert found.info.status == "FINISHED"
    assert found.data.params["sync_every"] == "2"
    assert [m.step for m in client.get_metric_history(found.info.run_id, "train_loss")] == [2, 4]
    assert found.data.metrics["eval_loss"] == pytest.approx(result["last_loss"])


def test_a_server_that_does_not_answer_costs_one_line_and_not_the_run(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with caplog.at_level(logging.WARNING, logger="trainer.mlflow_sink"):
        result = run(store, tmp_path)
    assert result["last_loss"] < result["first_loss"] + 1
    assert [m.startswith("event=mlflow_given_up run=run: ") for m in caplog.messages] == [True]


def test_without_the_package_one_is_told_what_to_install(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    spec = parse({})
    assert mlflow_sink(manager(store, 0, 1), 0, spec) is None  # nobody asked
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert mlflow_sink(manager(store, 1, 2), 1, spec) is None
    with pytest.raises(InvalidRunParameters, match="environment: sets MLFLOW_TRACKING_URI, but mlflow"):
        mlflow_sink(manager(store, 0, 1), 0, spec)
