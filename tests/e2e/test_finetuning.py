"""The fine-tuning examples, as they stand, on the deployed state machine, model and data in the bucket."""

import json
from pathlib import Path
from typing import Any

import pytest
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

from tests.support.deployed import ROOT, Deployed
from tests.support.small_models import write_model
from trainer.layout import RunLayout
from trainer.rendezvous.state_hash import weights_hash

MODEL = "diloco-in/models/small/"
DATA = "diloco-in/finetune"


@pytest.fixture(scope="module")
def uploaded(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder and two files of JSON lines, below the prefixes that the examples name."""
    folder = tmp_path_factory.mktemp("small")
    write_model("llama", folder)
    for path in folder.iterdir():
        deployed.put(f"{MODEL}{path.name}", path.read_bytes())
    for page in ("architecture", "operations"):
        paragraphs = (ROOT / "docs" / f"{page}.md").read_text().split("\n\n")
        rows = "".join(json.dumps({"text": text}) + "\n" for text in paragraphs if text.strip())
        deployed.put(f"{DATA}/{page}.jsonl", rows.encode())
    return folder


def downloaded(deployed: Deployed, run_id: str, folder: Path) -> set[str]:
    prefix = RunLayout(run_id).model_prefix
    for key in deployed.keys(f"{prefix}/"):
        (folder / key.removeprefix(f"{prefix}/")).write_bytes(deployed.read(key))
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["finetune", "lora"])
def test_an_example_learns_from_a_model_and_json_lines_in_the_bucket(
    deployed: Deployed, uploaded: Path, tmp_path: Path, name: str
) -> None:
    given = json.loads((ROOT / "runs" / "examples" / f"{name}.json").read_text())
    assert (given["model_name"], given["dataset_uri"]) == (MODEL, DATA)
    ended = deployed.execute(name, given)
    assert ended["status"] == "SUCCEEDED", ended.get("cause")
    summary = json.loads(ended["output"])
    assert len({row["weights_hash"] for row in summary["replicas"]}) == 1
    result: dict[str, Any] = json.loads(deployed.read(RunLayout(name).result(0)))
    assert result["last_loss"] < result["first_loss"]
    files = downloaded(deployed, name, tmp_path)
    if name == "finetune":
        assert "adapter_config.json" not in files
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert weights_hash(model.named_parameters()) == summary["weights_hash"]
    else:
        assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= files
        assert "model.safetensors" not in files
        config = json.loads((tmp_path / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(uploaded)  # where the bucket's prefix lies here
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path)
        assert adapted.peft_config["default"].r == given["lora_rank"]
