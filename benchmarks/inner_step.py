"""What does DiLoCo's loop cost an inner step in which nothing is exchanged?

    python -m benchmarks.inner_step

The same model and data twice, one in the DiLoCo loop, one with the optimizer alone, in alternating
windows on one core. `overhead` is the median over pairs of windows of how much longer a step takes;
`overhead_upper` bounds that median from above with 95 % confidence (bootstrap over the pairs).
"""

import argparse
import json
import statistics
import threading
import time
from typing import Final

import numpy as np
import torch

from trainer.diloco import make_diloco_outer_loop
from trainer.model import build_model
from trainer.rendezvous.allreduce import ObjectStoreAllReduce
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.object_store import open_store
from trainer.rendezvous.progress import ProgressReporter
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.waiting import Standing, WaitBounds

WINDOWS: Final = 10  # of each kind
STEPS: Final = 30  # in a window
RESAMPLES: Final = 10_000
BATCH, SEQ_LEN = 8, 64


class Side:
    """One model with its optimizer; `window` trains a window of steps, and says how long the median took."""

    def __init__(self) -> None:
        self.model = build_model("small-random", seq_len=SEQ_LEN, seed=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(3, 259, (BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(0))

    def window(self) -> float:
        seconds = []
        for _ in range(STEPS):
            began_s = time.perf_counter()
            self.optimizer.zero_grad()
            self.model(input_ids=self.tokens, labels=self.tokens).loss.backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - began_s)
        return statistics.median(seconds)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)
    plain, diloco = Side(), Side()
    log = RunLog(open_store("memory://"), "run")
    standing = Standing(log, 0, log.take_claim(0), threading.Event())
    manager = ObjectStoreManager(
        ObjectStoreAllReduce(standing, 1, WaitBounds(600, 600, 600, 1.0)),
        ProgressReporter(log, 0, standing.claim),
    )
    loop = make_diloco_outer_loop(
        manager=manager, model=diloco.model, inner_optimizer=diloco.optimizer, sync_every=10**6
    )
    with loop:
        plain.window(), diloco.window()  # warm up
        pairs = []
        for index in range(WINDOWS):
            order = (plain, diloco) if index % 2 else (diloco, plain)
            seconds = {id(side): side.window() for side in order}
            pairs.append((seconds[id(plain)], seconds[id(diloco)]))
    overheads = np.array([ours / theirs - 1 for theirs, ours in pairs])
    picked = np.random.default_rng(0).integers(0, WINDOWS, (RESAMPLES, WINDOWS))
    found = {
        "benchmark": "inner_step",
        "overhead": round(float(np.median(overheads)), 4),
        "overhead_upper": round(float(np.quantile(np.median(overheads[picked], axis=1), 0.95)), 4),
        "plain_step_ms": round(1e3 * statistics.median(theirs for theirs, _ in pairs), 2),
        "diloco_step_ms": round(1e3 * statistics.median(ours for _, ours in pairs), 2),
        "windows": WINDOWS,
        "steps_a_window": STEPS,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
