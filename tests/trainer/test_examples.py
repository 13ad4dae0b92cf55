"""The fine-tuning examples, as they stand, by processes on a store that holds what they name."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.small_models import write_model
from trainer import local

EXAMPLES = Path(__file__).parents[2] / "runs" / "examples"


@pytest.mark.parametrize(("name", "saved"), [("finetune", "model"), ("lora", "adapter_model")])
def test_an_example_learns_from_a_model_and_data_in_the_bucket(name: str, saved: str, tmp_path: Path) -> None:
    parameters = json.loads((EXAMPLES / f"{name}.json").read_text())
    bucket = tmp_path / "store"
    write_model("llama", bucket / parameters["model_name"])
    shutil.copytree(EXAMPLES.parents[1] / "docs", bucket / parameters["dataset_uri"])
    argv = [str(EXAMPLES / f"{name}.json"), "--store", bucket.as_uri(), "--run-id", "r"]
    assert local.main([*argv, "--out", str(tmp_path / "runs")]) == 0
    report = json.loads((tmp_path / "runs" / "r" / "report.json").read_text())
    assert report["last_loss"] < report["first_loss"]
    files = {path.name for path in (tmp_path / "runs" / "r" / "model").iterdir()}
    assert {f"{saved}.safetensors", "tokenizer.json"} <= files
