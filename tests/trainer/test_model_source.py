"""Where a model may come from, what is taken of it, and what is said of one that can't be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from tests.support.small_models import write_model
from trainer.adapters import save_model
from trainer.failures import BadModel
from trainer.model_loading import attention_implementation, load_model, load_tokenizer
from trainer.model_source import model_folder
from trainer.rendezvous.state_hash import weights_hash
from trainer.replica_entrypoint import _model
from trainer.run_spec import InvalidRunParameters, parse

CPU = torch.device("cpu")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model("llama", tmp_path / "source")


def load(scratch: Path, **parameters: Any) -> Any:
    spec = parse({"seq_len": 16, **parameters})
    return load_model(spec, load_tokenizer(spec, scratch), CPU, scratch)


def test_a_file_uri_a_folder_and_a_bucket_give_the_same_model(source: Path, tmp_path: Path) -> None:
    bucket = fsspec.filesystem("memory")
    bucket.put(f"{source}/", "/models/mine/", recursive=True)
    names = [str(source), source.as_uri(), "memory://models/mine/"]
    hashes = {weights_hash(load(tmp_path, model_name=name).named_parameters()) for name in names}
    assert hashes == {weights_hash(load_file(source / "model.safetensors").items())}
    assert not list(tmp_path.glob("fetched-*"))  # gigabytes, in a run's life


def test_of_a_bucket_only_data_of_the_folder_itself_is_fetched(source: Path, tmp_path: Path) -> None:
    for name in ("evil.py", "optimizer.bin", "notes.pkl", "deep/model.safetensors"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("x")
    fsspec.filesystem("memory").put(f"{source}/", "/models/dirty/", recursive=True)
    wanted = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    with model_folder("model_name", "memory://models/dirty", tmp_path) as folder:
        assert {path.name for path in folder.rglob("*")} == wanted | {"model.safetensors"}
    with model_folder("model_name", "memory://models/dirty", tmp_path, weights=False) as folder:
        assert {path.name for path in folder.rglob("*")} == wanted


def test_a_slash_at_the_end_names_a_prefix_of_the_runs_own_store() -> None:
    class Store:
        address = staticmethod("s3://bucket/{}".format)

    class OfOwnStore:
        store = Store

    run: Any = OfOwnStore
    names = [
        "diloco-in/models/mine/",
        "org/name",
        "name",
        "s3://other/models/mine/",
        "/opt/ml/input/data/model/",
    ]
    assert [_model(run, name) for name in names] == ["s3://bucket/diloco-in/models/mine/", *names[1:]]


def test_from_scratch_takes_the_configuration_and_draws_from_the_seed(source: Path, tmp_path: Path) -> None:
    (source / "model.safetensors").unlink()
    drawn = [load(tmp_path, model_name=str(source), from_scratch=True, seed=seed) for seed in (0, 0, 1)]
    hashes = [weights_hash(model.named_parameters()) for model in drawn]
    assert hashes[0] == hashes[1] != hashes[2]
    assert drawn[0].config.hidden_size == 16


@pytest.mark.parametrize(
    ("have", "chosen"),
    [
        ((True, True, True, True), "flash_attention_2"),
        ((False, True, True, True), "sdpa"),
        ((True, False, True, True), "sdpa"),
        ((True, True, False, True), "sdpa"),
        ((True, True, False, False), "eager"),
        ((True, True, True, False), "flash_attention_2"),
        ((False, True, True, False), "eager"),
    ],
)
def test_attention_is_the_fastest_that_machine_and_model_have(
    have: tuple[bool, bool, bool, bool], chosen: str
) -> None:
    names = ("cuda", "flash_importable", "model_has_flash", "model_has_sdpa")
    assert attention_implementation(**dict(zip(names, have, strict=True))) == chosen


def test_parameters_are_float32_whatever_the_files_hold(source: Path, tmp_path: Path) -> None:
    halved = {n: t.bfloat16() for n, t in load_file(source / "model.safetensors").items()}
    save_file(halved, source / "model.safetensors", {"format": "pt"})
    model = load(tmp_path, model_name=str(source))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == "sdpa"
    save_model(model, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert {t.dtype for t in saved.values()} == {torch.float32}


@pytest.mark.parametrize("option", ["gradient_checkpointing", "torch_compile"])
def test_an_option_of_speed_changes_no_gradient_and_no_name(
    option: str, source: Path, tmp_path: Path
) -> None:
    ids = torch.arange(32).view(2, 16)
    found = []
    for chosen in (False, True):
        model = load(tmp_path, model_name=str(source), **{option: chosen})
        model(input_ids=ids, labels=ids).loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    assert model.is_gradient_checkpointing == (option == "gradient_checkpointing")
    assert (model._compiled_call_impl is not None) == (option == "torch_compile")
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-6)


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _headless(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _masked(folder: Path) -> None:
    config = BertConfig(
        vocab_size=300, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    BertForMaskedLM(config).save_pretrained(folder)


def _two_way(folder: Path) -> None:
    config = T5Config(vocab_size=300, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(folder)


def _own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "of_mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('this code must not run')")


def _adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "parameters", "text"),
    [
        (shutil.rmtree, {}, r"model_name \S+/source: there is no such folder"),
        (_pickled, {}, "its weights are pickled, and unpickling runs code: save the model as safetensors"),
        (lambda f: (f / "model.safetensors").unlink(), {}, "no .safetensors file there. from_scratch trains"),
        (_headless, {}, "its files lack 1 weights of LlamaForCausalLM, first lm_head.weight"),
        (_cut, {}, "its weights can't be loaded: "),
        (_masked, {}, "BertForMaskedLM is no causal language model"),
        (_two_way, {}, "T5ForConditionalGeneration is no causal language model"),
        (_own_code, {}, "no configuration .* of a model that transformers knows"),
        (_adapter, {}, "is an adapter, not a model"),
        (lambda f: (f / "config.json").unlink(), {}, "no configuration"),
        (lambda f: None, {"seq_len": 65}, "takes at most 64 tokens, and seq_len is 65"),
        (lambda f: None, {"lora_rank": 2, "lora_targets": "none_such"}, "lora_targets none_such: "),
    ],
)
def test_a_model_that_cant_be_used_is_named_with_what_is_wrong(
    spoil: Callable[[Path], None], parameters: dict[str, Any], text: str, source: Path, tmp_path: Path
) -> None:
    spoil(source)
    with pytest.raises(BadModel, match=text):
        load(tmp_path, model_name=str(source), tokenizer_name="bytes", **parameters)


def test_a_missing_tokenizer_is_told_with_the_way_out(tmp_path: Path) -> None:
    source = write_model("llama", tmp_path / "source", tokenizer=False)
    with pytest.raises(BadModel, match="no tokenizer can be read from it; name one with tokenizer_name, "):
        load(tmp_path, model_name=str(source))


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"knows 259 tokens, and the tokenizer \S+/source has 290"):
        load(tmp_path, model_name="tiny-random", tokenizer_name=str(source))


def test_where_the_hub_cant_be_reached_the_way_round_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(BadModel, match="org/none: the hub can't be reached .* diloco-in/models/NAME/"):
        load(tmp_path, model_name="org/none", tokenizer_name="bytes")
    with pytest.raises(BadModel, match="the hub has no such model"):
        load(tmp_path, model_name="no/such/id", tokenizer_name="bytes")


def test_a_bucket_without_such_a_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="model_name memory://models/none: "):
        load(tmp_path, model_name="memory://models/none", tokenizer_name="bytes")
    with pytest.raises(BadModel, match="model_name odd://models: can't be read"):
        load(tmp_path, model_name="odd://models", tokenizer_name="bytes")


@pytest.mark.parametrize(("pattern", "text"), [("(", "no regular"), ("x{9}", "fits none of the 21")])
def test_a_trainable_that_chooses_nothing_is_refused(
    pattern: str, text: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRunParameters, match=f"trainable: .*{text}"):
        load(tmp_path, model_name=str(source), trainable=pattern)
    with pytest.raises(InvalidRunParameters, match="trainable: must be empty with lora_rank"):
        parse({"trainable": "x", "lora_rank": 1})
