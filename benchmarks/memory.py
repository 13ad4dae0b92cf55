"""What memory does a replica take, and does the formula of docs/models-and-data.md say so?

    python -m benchmarks.memory [--hidden 512] [--layers 8] [--replicas 2] [--lora-rank 0]

A Llama with random weights is trained for two rounds by processes that share a folder, as training
jobs share a bucket; `measured` is the most that rank 0 had resident above what it had before, at
any time from loading the model to saving it. On the CPU: on an accelerator the same bytes lie in
two places, which the docs tell apart. One JSON line.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.gang import Workers
from tests.support.gang import manager
from trainer import train
from trainer.model import VOCABULARY
from trainer.rendezvous.object_store import open_store

# Bytes a parameter. Every one: its weight. One that trains besides: gradient, AdamW's two moments,
# the shared weight (what the pseudo-gradient is taken from) and its outer momentum; and while a
# round is exchanged: the pseudo-gradient, its flat copy and the local weight kept beside it.
FROZEN_BYTES: Final = 4
TRAINED_BYTES: Final = 4 + 4 + 8 + 4 + 4
EXCHANGED_BYTES: Final = 4 + 4 + 4
# And when the round has ended: the checkpoint's copy of weights, shared weights, momentum and moments,
# until it is written.
CHECKPOINT_BYTES: Final = 4 + 4 + 4 + 8


def predicted_bytes(*, trained: int, frozen: int, fragments: int = 1) -> int:
    """Peak of a replica's memory for weights and all that belongs to them; activations come on top."""
    round_end = max(EXCHANGED_BYTES * trained // fragments, CHECKPOINT_BYTES * trained)
    return FROZEN_BYTES * frozen + TRAINED_BYTES * trained + round_end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--lora-rank", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        _config(given.hidden, given.layers).save_pretrained(source)
        parameters = {
            "model_name": str(source),
            "from_scratch": True,
            "tokenizer_name": "bytes",
            "lora_rank": given.lora_rank,
            "fragments": given.fragments,
            # Rounds long enough for a checkpoint to be written within the next, or two peaks would meet.
            "sync_every": 20 * given.fragments,
            "total_steps": 40 * given.fragments,
            "batch_size": 1,
            "seq_len": 8,
        }
        with Workers(given.replicas, setup, folder, given.replicas, parameters) as workers:
            cost = workers.run()[0]
    trained, frozen = cost.result
    predicted = predicted_bytes(trained=trained, frozen=frozen, fragments=given.fragments)
    found = {
        "benchmark": "memory",
        "trained": trained,
        "frozen": frozen,
        "fragments": given.fragments,
        "predicted_mb": round(predicted / 2**20, 1),
        "measured_mb": round(cost.extra_bytes / 2**20, 1),
        "ratio": round(cost.extra_bytes / predicted, 3),
    }
    print(json.dumps(found))


def setup(rank: int, folder: str, replicas: int, parameters: dict[str, Any]) -> Callable[[], tuple[int, int]]:
    """A replica that trains once and returns how many parameters trained and how many were frozen."""
    store = open_store((Path(folder) / "store").as_uri())
    warm = {
        "total_steps": 1,
        "sync_every": 1,
    }  # what is loaded once belongs to no model
    warmed = manager(open_store("memory://"), 0, 1)
    train.diloco_train(manager=warmed, rank=0, world_size=1, model_dir=Path(folder) / f"warm{rank}", **warm)

    def run() -> tuple[int, int]:
        made, model_dir = manager(store, rank, replicas), Path(folder) / f"out{rank}"
        train.diloco_train(manager=made, rank=rank, world_size=replicas, model_dir=model_dir, **parameters)
        states = (save()["original_parameters"] for save in made._save_fns.values())
        trained = sum(t.numel() for state in states for t in state.values())
        config = LlamaConfig.from_pretrained(parameters["model_name"])
        whole = _numel(config)
        return trained, whole if parameters["lora_rank"] else whole - trained

    return run


def _numel(config: LlamaConfig) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def _config(hidden: int, layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
