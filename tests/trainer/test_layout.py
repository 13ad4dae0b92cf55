"""Keys are a contract with everybody who reads a run's log: spelled out here once more."""

import re

import pytest

from trainer.layout import METRICS, RunLayout, check_run_id, metric_pattern


def test_the_keys_of_a_run() -> None:
    keys = RunLayout("my-run.1")
    assert keys.run_file == "diloco-rdv/my-run.1/run.json"
    assert keys.claim(3, 2) == "diloco-rdv/my-run.1/claims/rank_0003.2.json"
    assert keys.contribution(7, 3) == "diloco-rdv/my-run.1/log/round_000007/rank_0003.json"
    assert keys.roster(7) == "diloco-rdv/my-run.1/log/round_000007/roster.json"
    assert keys.event(7, 3) == "diloco-rdv/my-run.1/events/round_000007/rank_0003.json"
    assert keys.progress(3) == "diloco-rdv/my-run.1/progress/rank_0003.json"
    assert keys.result(3) == "diloco-rdv/my-run.1/results/rank_0003.json"
    assert keys.abort == "diloco-rdv/my-run.1/abort.json"
    assert keys.initial == "diloco-rdv/my-run.1/initial/manifest.json"
    assert keys.initial_payload(3, 2) == "diloco-rdv/my-run.1/initial/rank_0003.c2.safetensors"
    assert keys.payload(7, 3, 2) == "diloco-data/my-run.1/round_000007/rank_0003.c2.bin"
    assert keys.mean(7, 2) == "diloco-rdv/my-run.1/log/round_000007/mean_0002.json"
    assert keys.mean_payload(7, 2, 3, 1) == "diloco-data/my-run.1/round_000007/mean_0002.r0003.c1.bin"
    assert keys.model_prefix == "diloco-out/my-run.1/model"
    assert keys.metrics(3) == "diloco-out/my-run.1/metrics/rank_0003.jsonl"


@pytest.mark.parametrize("run_id", ["", "a/b", "../x", "-a", "a b", "é", "a\n", "x" * 81])
def test_a_run_id_that_would_be_another_key_is_refused(run_id: str) -> None:
    with pytest.raises(ValueError, match="run id"):
        check_run_id(run_id)
    with pytest.raises(ValueError, match="run id"):
        RunLayout(run_id)


def test_a_metric_is_found_by_its_whole_name() -> None:
    line = "2026-01-01 metrics rank=0 round=1 train_loss=2.5e-01 eval_loss=3 lr=0.001"
    found = {name: re.findall(metric_pattern(name), line) for name in METRICS}
    assert found["train_loss"] == ["2.5e-01"]
    assert found["eval_loss"] == ["3"]
    assert found["lr"] == ["0.001"]
    assert found["tokens_per_s"] == []
