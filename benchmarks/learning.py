"""What does training apart cost in loss, and what does it save in bytes?

    python -m benchmarks.learning            about 15 minutes on two idle cores
    python -m benchmarks.learning --quick    a small model and few steps: not a figure to report
    python -m benchmarks.learning --sweep    a line for each outer setting, then the line of the best

A byte Llama of 1 M parameters on the Python standard library's source, held-out files; means over
`--seeds` seeds. DiLoCo with N = 4 against data-parallel AdamW of the same total batch on the same
tokens in the same order, and against one replica by itself for the same steps. `gap` is DiLoCo's
loss minus data-parallel's, `over_single` the single replica's minus DiLoCo's, both held out, nats
per byte. `bytes_ratio` is what a replica sends data-parallel, a float32 gradient a step, over
what it sends here, a float32 pseudo-gradient a round.

One process holds the N models; the exchange changes no bit of it (benchmarks/simulated.py).
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any, Final

import torch

from benchmarks.simulated import Setting, Text, make_model, standard_library, train

REPLICAS: Final = 4
RECOMMENDED: Final = Setting(replicas=REPLICAS, steps=900, sync_every=20, outer_lr=1.0, outer_momentum=0.0)
# Outer learning rate, momentum, rounds over which the momentum grows from zero.
SWEEP: Final = (
    (0.7, 0.0, 0), (1.0, 0.0, 0), (1.3, 0.0, 0), (0.7, 0.3, 0), (0.5, 0.5, 0),
    (0.7, 0.9, 0), (0.7, 0.9, 20), (1.0, 0.3, 10),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=RECOMMENDED.steps)
    parser.add_argument("--sync-every", type=int, default=RECOMMENDED.sync_every)
    parser.add_argument("--inner-optimizer", choices=("adamw", "muon"), default="adamw")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    size, seq_len = ("1M", 128)
    chosen = replace(
        RECOMMENDED, steps=given.steps, sync_every=given.sync_every, inner_optimizer=given.inner_optimizer
    )
    if given.quick:
        size, seq_len, given.seeds = "quick", 64, 1
        chosen = replace(chosen, steps=60, batch_size=4)
    began_s = time.monotonic()
    text = standard_library(seq_len)
    if given.sweep:
        chosen = _best(chosen, text, size)
    found = compare(chosen, text, size, given.seeds)
    print(json.dumps({
        "benchmark": "learning", **found, "parameters": _parameters(size), "seq_len": seq_len,
        "setting": vars(chosen), "seeds": given.seeds, "quick": given.quick,
        "took_s": round(time.monotonic() - began_s),
    }))  # fmt: skip


def compare(diloco: Setting, text: Text, size: str, seeds: int) -> dict[str, Any]:
    """The three ways, same seeds; losses are means over the seeds."""
    whole = {"sync_every": diloco.steps, "replicas": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    ways = {
        "diloco": diloco,
        "data_parallel": replace(diloco, batch_size=REPLICAS * diloco.batch_size, **whole),
        "single": replace(diloco, **whole),
    }
    losses = {
        name: [train(setting, text, size, seed) for seed in range(seeds)] for name, setting in ways.items()
    }
    mean = {name: statistics.mean(values) for name, values in losses.items()}
    return {
        "gap": round(mean["diloco"] - mean["data_parallel"], 4),
        "over_single": round(mean["single"] - mean["diloco"], 4),
        "bytes_ratio": round(diloco.steps / (diloco.steps // diloco.sync_every), 1),
        "losses": {name: [round(value, 4) for value in values] for name, values in losses.items()},
    }


def _best(setting: Setting, text: Text, size: str) -> Setting:
    """The outer setting of SWEEP with the lowest held-out loss, one seed; prints each."""
    found = []
    for outer_lr, momentum, warmup in SWEEP:
        tried = replace(setting, outer_lr=outer_lr, outer_momentum=momentum, momentum_warmup_rounds=warmup)
        loss = train(tried, text, size, seed=0)
        found.append((loss, tried))
        print(json.dumps({"outer_lr": outer_lr, "outer_momentum": momentum,
                          "momentum_warmup_rounds": warmup, "loss": round(loss, 4)}), flush=True)  # fmt: skip
    return min(found, key=lambda pair: pair[0])[1]


def _parameters(size: str) -> int:
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in make_model(size, 128, 0).parameters())


if __name__ == "__main__":
    main()
