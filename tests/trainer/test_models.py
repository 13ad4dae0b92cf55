"""Models of four families: loaded from a folder, trained by two replicas, saved as they came."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.gang import manager, together
from tests.support.small_models import CONFIGS, TIED, write_model
from trainer import train
from trainer.rendezvous.errors import ForeignObject
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.state_hash import weights_hash

SHORT = {"total_steps": 4, "sync_every": 2, "seq_len": 16, "batch_size": 2, "lr": 0.01}


def two_replicas(store: ObjectStore, folder: Path, **parameters: Any) -> tuple[list[str], list[int]]:
    """Two rounds of two replicas; the hashes of their shared weights, the bytes each sent in a round."""

    def work(rank: int) -> tuple[str, int]:
        made = manager(store, rank, 2)
        train.diloco_train(
            manager=made, rank=rank, world_size=2, model_dir=folder / f"out{rank}", **SHORT, **parameters
        )
        made._reporter.close("finished")
        assert made.last_round is not None and made.current_step() == 2
        return made.weights_hash(), made.last_round.sent_bytes

    hashes, sent = zip(*together(2, work), strict=True)
    return list(hashes), list(sent)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_of_each_family_is_trained_and_saved(family: str, store: ObjectStore, tmp_path: Path) -> None:
    source = write_model(family, tmp_path / "source")
    hashes, sent = two_replicas(store, tmp_path, model_name=str(source))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out0")
    assert type(model).config_class is type(CONFIGS[family])
    assert [weights_hash(model.named_parameters())] * 2 == hashes
    before = AutoModelForCausalLM.from_pretrained(source)
    assert weights_hash(before.named_parameters()) != hashes[0]
    assert sent[0] >= 4 * before.num_parameters() / 2  # half a model: its part of the others' slices
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == (family in TIED)
    saved = load_file(tmp_path / "out0" / "model.safetensors")
    assert sum(t.numel() for t in saved.values()) == model.num_parameters()  # a tied weight once
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out0")) == 290
    assert model.config.use_cache


@pytest.mark.parametrize("family", CONFIGS)
def test_of_a_lora_run_the_adapter_alone_is_exchanged_and_saved(
    family: str, store: ObjectStore, tmp_path: Path
) -> None:
    source = write_model(family, tmp_path / "source")
    untouched = weights_hash(load_file(source / "model.safetensors").items())
    hashes, sent = two_replicas(store, tmp_path, model_name=str(source), lora_rank=2, tokenizer_name="bytes")
    adapter = load_file(tmp_path / "out0" / "adapter_model.safetensors")
    assert not list((tmp_path / "out0").glob("model*.safetensors"))
    assert hashes[0] == hashes[1]
    assert max(sent) <= 2 * 4 * sum(t.numel() for t in adapter.values())
    base = AutoModelForCausalLM.from_pretrained(source)
    before = weights_hash(base.named_parameters())
    model = PeftModel.from_pretrained(base, tmp_path / "out0")
    shared = {n: p for n, p in model.named_parameters() if ".lora_" in n}
    assert weights_hash(shared.items()) == hashes[0]
    assert sum(p.numel() for p in shared.values()) == sum(t.numel() for t in adapter.values())
    assert any(p.abs().sum() > 0 for n, p in shared.items() if ".lora_B." in n)  # drawn as zeros
    assert weights_hash(load_file(source / "model.safetensors").items()) == untouched
    assert weights_hash(model.unload().named_parameters()) == before
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out0")
    assert again.peft_config["default"].r == 2


def test_what_is_frozen_neither_moves_nor_travels(store: ObjectStore, tmp_path: Path) -> None:
    source = write_model("gpt2", tmp_path / "source")
    hashes, sent = two_replicas(store, tmp_path, model_name=str(source), trainable=r"\.h\.1\.mlp\.")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "out0"))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if ".h.1.mlp." in name or name.startswith("h.1.mlp.")}
    assert hashes[0] == hashes[1]
    assert max(sent) <= 2 * 4 * sum(before[name].numel() for name in moved)


def test_ranks_whose_frozen_weights_differ_are_told_before_they_train(
    store: ObjectStore, tmp_path: Path
) -> None:
    sources = [write_model("llama", tmp_path / f"source{seed}", seed=seed) for seed in range(2)]

    def work(rank: int) -> None:
        train.diloco_train(
            manager=manager(store, rank, 2), rank=rank, world_size=2, model_dir=tmp_path / f"out{rank}",
            model_name=str(sources[rank]), lora_rank=2, **SHORT,
        )  # fmt: skip

    with pytest.raises(ForeignObject, match=r"another model than this replica's: 2 .*frozen weights "):
        together(1, lambda _: [manager_of_first(store, sources[0], tmp_path), work(1)])


def manager_of_first(store: ObjectStore, source: Path, folder: Path) -> None:
    """Rank 0 of two has shared its weights, and no more."""
    from trainer.fragments import to_share
    from trainer.model_loading import load_model, load_tokenizer
    from trainer.run_spec import parse

    spec = parse({**SHORT, "model_name": str(source), "lora_rank": 2})
    model = load_model(spec, load_tokenizer(spec, folder), torch.device("cpu"), folder)
    manager(store, 0, 2).share_initial(to_share(model))
