"""The default trainer: what it learns, saves and says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.gang import manager, together
from trainer import train
from trainer.inner_loop import InnerLoop, RoundSums
from trainer.layout import METRICS
from trainer.model import build_model
from trainer.rendezvous.errors import Stopped
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.state_hash import weights_hash
from trainer.run_spec import parse


def run(
    store: ObjectStore, folder: Path, rank: int = 0, world_size: int = 1, stop_at: int = -1, **parameters: Any
) -> tuple[dict[str, Any], str]:
    made = manager(store, rank, world_size, folder / "checkpoints")
    made.check_stop = stop_before(stop_at, made)  # type: ignore[method-assign]
    result = train.diloco_train(
        manager=made, rank=rank, world_size=world_size, model_dir=folder / str(rank), **parameters
    )
    made._reporter.close("finished")
    return result, made.weights_hash()


def stop_before(step: int, made: ObjectStoreManager) -> Callable[[], None]:
    """A `check_stop` that ends the process before an inner step."""

    def check_stop() -> None:
        if made._inner_step == step:
            raise Stopped

    return check_stop


def test_the_saved_model_is_the_shared_one_on_every_rank_and_loads(
    store: ObjectStore, tmp_path: Path
) -> None:
    results = together(2, lambda rank: run(store, tmp_path, rank, 2, total_steps=4, sync_every=2, lr=0.01))
    assert results[0][0] == results[1][0]
    assert results[0][0]["last_loss"] < results[0][0]["first_loss"]
    for rank in range(2):
        saved = load_file(tmp_path / str(rank) / "model.safetensors")
        assert weights_hash(saved.items()) == results[0][1] == results[1][1]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "0")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "0")
    ids = tokenizer("def f(x):", add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert model(input_ids=ids).logits.shape == (1, 9, len(tokenizer))
    assert weights_hash(model.named_parameters()) == results[0][1]
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_flipped_weight_has_another_hash(tmp_path: Path) -> None:
    model = build_model("tiny-random", seq_len=8, seed=0)
    before = weights_hash(model.named_parameters())
    with torch.no_grad():
        model.model.norm.weight.view(torch.int32)[0] ^= 1
    assert weights_hash(model.named_parameters()) != before


def test_a_model_is_a_function_of_its_seed_and_leaves_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    hashes = [
        weights_hash(build_model("tiny-random", seq_len=8, seed=s).named_parameters()) for s in (0, 0, 1)
    ]
    assert hashes[0] == hashes[1] != hashes[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_accumulated_batches_are_one_step_of_their_mean(store: ObjectStore, tmp_path: Path) -> None:
    """Two batches of four, or one of eight with the same rows: the same inner steps up to rounding."""
    spec = parse({"gradient_accumulation": 2, "batch_size": 4})
    gradients = []
    for accumulation in (2, 1):
        model = build_model("tiny-random", seq_len=16, seed=0)
        rows = torch.arange(8 * 16).view(8, 16) % 250 + 3
        for part in rows.chunk(accumulation):
            (model(input_ids=part, labels=part).loss / accumulation).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    result, _ = run(store, tmp_path, **spec.trainer_parameters())
    assert result["last_loss"] < result["first_loss"]


def test_muon_learns_through_rounds_in_fragments(store: ObjectStore, tmp_path: Path) -> None:
    """torchft hooks the two optimizers as one: a round every two inner steps, no more."""
    parameters = {"total_steps": 8, "sync_every": 4, "fragments": 2, "lr": 0.01, "inner_optimizer": "muon"}
    results = together(2, lambda rank: run(store, tmp_path, rank, 2, **parameters))
    assert results[0] == results[1]
    assert results[0][0]["last_loss"] < results[0][0]["first_loss"] - 0.1
    lines = [json.loads(line) for line in store.get("diloco-out/run/metrics/rank_0001.jsonl").splitlines()]
    assert [(line["round"], line["inner_step"]) for line in lines] == [(0, 2), (1, 4), (2, 6), (3, 8)]


def test_each_round_is_reported_by_the_names_of_the_layout(store: ObjectStore, tmp_path: Path) -> None:
    run(store, tmp_path, total_steps=8, eval_every_rounds=2)
    lines = [json.loads(line) for line in store.get("diloco-out/run/metrics/rank_0000.jsonl").splitlines()]
    assert [(line["round"], line["inner_step"]) for line in lines] == [(0, 2), (1, 4), (2, 6), (3, 8)]
    assert ["eval_loss" in line for line in lines] == [False, True, False, True]
    assert set(lines[3]) == {"rank", "round", "inner_step", *METRICS} - {"mfu"}  # a CPU has no known peak
    assert lines[0]["sent_bytes"] == 4 * 28_928


def test_a_resumed_trainer_goes_on_where_the_log_ends(store: ObjectStore, tmp_path: Path) -> None:
    """Two rounds in each of two processes, no checkpoint between: step numbers, rate and data go on."""
    run(store, tmp_path, total_steps=4)
    shutil.rmtree(tmp_path / "checkpoints")
    lines = len(store.get("diloco-out/run/metrics/rank_0000.jsonl").splitlines())
    result, _ = run(store, tmp_path, total_steps=8)
    after = [json.loads(line) for line in store.get("diloco-out/run/metrics/rank_0000.jsonl").splitlines()]
    assert lines == 2
    assert [line["inner_step"] for line in after] == [2, 4, 6, 8]  # its earlier life's lines are kept
    assert result["last_loss"] < result["first_loss"]


RESUMED = {"total_steps": 8, "sync_every": 4, "fragments": 2, "gradient_accumulation": 2, "warmup_steps": 3,
           "lr": 0.01}  # fmt: skip


def test_a_trainer_stopped_at_any_inner_step_ends_with_the_bits_of_one_that_never_was(tmp_path: Path) -> None:
    """Data, learning rate and both optimizers are where they were."""
    expected = run(open_store("memory://"), tmp_path / "whole", **RESUMED)
    for step in (1, 2, 3, 5, 6):
        store, folder = open_store("memory://"), tmp_path / str(step)
        with pytest.raises(Stopped):
            run(store, folder, stop_at=step, **RESUMED)
        result, weights = run(store, folder, **RESUMED)
        assert (result["last_loss"], weights) == (expected[0]["last_loss"], expected[1]), f"at step {step}"


def test_a_trainer_that_replays_takes_the_data_and_the_rate_of_its_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are lost, the log is two rounds on: it takes up batches and rates there."""
    seen: list[tuple[object, float]] = []
    original = InnerLoop._inner_step

    def noted(self: InnerLoop, step: int, sums: RoundSums) -> None:
        before = self.batches.state_dict()
        original(self, step, sums)
        seen.append((before, self.optimizer.param_groups[0]["lr"]))

    monkeypatch.setattr(InnerLoop, "_inner_step", noted)
    run(open_store("memory://"), tmp_path / "whole", **RESUMED)
    whole, store = list(seen), open_store("memory://")
    with pytest.raises(Stopped):
        run(store, tmp_path, stop_at=5, **RESUMED)
    shutil.rmtree(tmp_path / "checkpoints")
    seen.clear()
    run(store, tmp_path, **RESUMED)
    assert seen == whole[4:]
