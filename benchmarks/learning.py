"""What does training apart cost in loss, and what does it save in bytes?

    python -m benchmarks.learning            three quarters of an hour on two cores
    python -m benchmarks.learning --quick    a small model and few steps: not a figure to report
    python -m benchmarks.learning --sweep    a line for each setting of SWEEP, one seed

A byte Llama of 1 M parameters on the Python standard library's source, held-out files; means over
`--seeds` seeds. DiLoCo with N = 4 and Muon inside (MuLoCo, arXiv:2505.23725) against data-parallel
training of the same total batch on the same tokens in the same order, and against one replica by
itself for the same steps. All losses are held out, in nats per byte: `gap` is DiLoCo's minus that
of data-parallel AdamW, `gap_muon` minus that of data-parallel Muon, which tells what training apart
costs by itself, and `over_single` the single replica's minus DiLoCo's. `bytes_ratio` is what a
replica sends data-parallel, a float32 gradient a step, over what it sends here, a pseudo-gradient
a round in the wire format of the setting.

A training is one process of one thread that holds the N models, as many at once as there are
cores; the exchange changes no bit of it (benchmarks/simulated.py).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

import torch

from benchmarks.simulated import Setting, make_model, standard_library, train
from trainer.rendezvous.wire import FORMATS

REPLICAS: Final = 4
Work = Callable[[Setting, int], float]  # setting and seed to held-out loss
DILOCO: Final = Setting(
    replicas=REPLICAS, steps=900, batch_size=8, sync_every=5, wire_dtype="int4",
    outer_lr=1.0, outer_momentum=0.0, inner_optimizer="muon", lr=8e-3,
)  # fmt: skip
ADAMW: Final = {"inner_optimizer": "adamw", "lr": 4e-3}
# For each way its learning rate; for DiLoCo also what changes the bytes, then the outer step.
SWEEP: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "data_parallel": [{"lr": 4e-3}, {"lr": 8e-3}, {"lr": 2e-3}],
    "data_parallel_muon": [{"lr": 8e-3}, {"lr": 4e-3}],
    "diloco": [
        {"lr": 8e-3}, {"lr": 4e-3}, {"sync_every": 20, "wire_dtype": "fp32"},
        {"outer_lr": 0.7, "outer_momentum": 0.9}, {"outer_lr": 0.7, "outer_momentum": 0.3},
        {**ADAMW, "lr": 8e-3}, ADAMW, {**ADAMW, "sync_every": 3},
    ],
    "single": [{"lr": 8e-3}, {"lr": 4e-3}],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    size, seq_len, diloco = "1M", 128, DILOCO
    if given.quick:
        size, seq_len, given.seeds = "quick", 64, 1
        diloco = replace(DILOCO, steps=60, batch_size=4)
    began_s = time.monotonic()
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_on_one_thread) as pool:
        work = partial(_train, seq_len, size)
        if given.sweep:
            sweep(pool, work, diloco)
            return
        found = compare(pool, work, diloco, given.seeds)
    print(json.dumps({
        "benchmark": "learning", **found, "parameters": _parameters(size), "seq_len": seq_len,
        "setting": vars(diloco), "seeds": given.seeds, "quick": given.quick,
        "took_s": round(time.monotonic() - began_s),
    }))  # fmt: skip


def ways(diloco: Setting) -> dict[str, Setting]:
    """DiLoCo, and those it is held against; a single replica's weights are its own at every step."""
    single = replace(
        diloco, replicas=1, sync_every=diloco.steps, wire_dtype="fp32", outer_lr=1.0, outer_momentum=0.0
    )
    data_parallel = replace(single, batch_size=diloco.replicas * diloco.batch_size)
    return {
        "diloco": diloco,
        "data_parallel": replace(data_parallel, **ADAMW),
        "data_parallel_muon": data_parallel,
        "single": single,
    }


def compare(pool: Executor, work: Work, diloco: Setting, seeds: int) -> dict[str, Any]:
    """All ways, same seeds; losses are means over the seeds."""
    waiting = {
        name: [pool.submit(work, setting, seed) for seed in range(seeds)]
        for name, setting in ways(diloco).items()
    }
    losses = {name: [future.result() for future in futures] for name, futures in waiting.items()}
    mean = {name: statistics.mean(values) for name, values in losses.items()}
    return {
        "gap": round(mean["diloco"] - mean["data_parallel"], 4),
        "gap_muon": round(mean["diloco"] - mean["data_parallel_muon"], 4),
        "over_single": round(mean["single"] - mean["diloco"], 4),
        "bytes_ratio": bytes_ratio(diloco),
        "losses": {name: [round(value, 4) for value in values] for name, values in losses.items()},
    }


def sweep(pool: Executor, work: Work, diloco: Setting) -> None:
    """Print a line for each setting of SWEEP, in whichever order they are done."""
    waiting = {
        pool.submit(work, replace(ways(diloco)[way], **changes), 0): (way, changes)
        for way, tried in SWEEP.items()
        for changes in tried
    }
    for future in as_completed(waiting):
        way, changes = waiting[future]
        ratio = {"bytes_ratio": bytes_ratio(replace(diloco, **changes))} if way == "diloco" else {}
        print(json.dumps({"way": way, **changes, "loss": round(future.result(), 4), **ratio}), flush=True)


def bytes_ratio(diloco: Setting) -> float:
    """What a replica sends in `sync_every` steps: a float32 gradient for each, over one pseudo-gradient."""
    values = _parameters("1M")
    sent = FORMATS[diloco.wire_dtype].size_of(values)
    return round(diloco.sync_every * FORMATS["fp32"].size_of(values) / sent, 1)


def _on_one_thread() -> None:
    torch.set_num_threads(1)


def _train(seq_len: int, size: str, setting: Setting, seed: int) -> float:
    return train(setting, standard_library(seq_len), size, seed)


def _parameters(size: str) -> int:
    with torch.random.fork_rng(devices=[]):
        return sum(p.numel() for p in make_model(size, 128, 0).parameters())


if __name__ == "__main__":
    main()
