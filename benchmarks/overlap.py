"""How much of an exchange is hidden behind the inner steps?

    python -m benchmarks.overlap

Two replicas train a real model on a server that takes each upload a known time. `hidden` is the
share of an exchange's seconds that the training thread does not lose, against the same inner steps
without any exchange, where the delay's inner steps take longer than the exchange; `hidden_control`
is the same without a delay, where everything waits. Medians over rounds.
"""

import argparse
import json
import os
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from benchmarks.gang import Workers
from tests.support.fault_s3 import FaultS3

REPLICAS: Final = 2
SYNC_EVERY, DELAY = 24, 20
ROUNDS: Final = 4  # measured, after one that warms up
EXCHANGE_S: Final = 0.5  # that an upload takes: below what the inner steps of the delay do
POLL_S: Final = 0.02


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    with FaultS3() as server, Workers(REPLICAS, setup, server.address) as workers:
        plain = workers.run("plain", "", 0)
        parameter_bytes = plain[0].result["bytes"]
        server.upload_bytes_per_s = parameter_bytes / EXCHANGE_S
        delayed = workers.run("diloco", uuid.uuid4().hex, DELAY)
        control = workers.run("diloco", uuid.uuid4().hex, 0)
    plain_s = _median(plain, "round_s")
    found: dict[str, Any] = {"benchmark": "overlap", "replicas": REPLICAS, "sync_every": SYNC_EVERY}
    for name, costs, delay in (("hidden", delayed, DELAY), ("hidden_control", control, 0)):
        exchange_s, round_s = _median(costs, "exchange_s"), _median(costs, "round_s")
        found[name] = round(1 - max(round_s - plain_s, 0.0) / exchange_s, 3)
        found[f"delay_{delay}"] = {"round_s": round(round_s, 3), "exchange_s": round(exchange_s, 3)}
    found["plain_round_s"] = round(plain_s, 3)
    found["delay_steps_s"] = round(plain_s * DELAY / SYNC_EVERY, 3)
    print(json.dumps(found))


def _median(costs: list[Any], name: str) -> float:
    return float(statistics.median(seconds for cost in costs for seconds in cost.result[name]))


def setup(rank: int, address: str) -> Callable[[str, str, int], dict[str, Any]]:
    """One replica's process; its function trains ROUNDS + 1 rounds one way and says what they took."""
    os.environ |= {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    import torch

    from trainer.diloco import make_diloco_outer_loop
    from trainer.model import build_model
    from trainer.rendezvous.allreduce import ObjectStoreAllReduce
    from trainer.rendezvous.manager import ObjectStoreManager
    from trainer.rendezvous.object_store import open_store
    from trainer.rendezvous.progress import ProgressReporter
    from trainer.rendezvous.run_log import RunLog
    from trainer.rendezvous.waiting import Standing, WaitBounds

    torch.set_num_threads(1)
    store = open_store("s3://bucket")
    tokens = torch.randint(3, 259, (16, 64), generator=torch.Generator().manual_seed(rank))

    def run(way: str, run_id: str, delay: int) -> dict[str, Any]:
        model = build_model("small-random", seq_len=64, seed=0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def one_round() -> float:
            began_s = time.perf_counter()
            for _ in range(SYNC_EVERY):
                optimizer.zero_grad()
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()
            return time.perf_counter() - began_s

        result: dict[str, Any] = {"bytes": 4 * sum(p.numel() for p in model.parameters())}
        if way == "plain":
            return result | {"round_s": [one_round() for _ in range(ROUNDS + 1)][1:]}
        log = RunLog(store, run_id)
        standing = Standing(log, rank, log.take_claim(rank), threading.Event())
        exchange = ObjectStoreAllReduce(standing, REPLICAS, WaitBounds(600, 600, 600, POLL_S))
        manager = ObjectStoreManager(exchange, ProgressReporter(log, rank, standing.claim))
        loop = make_diloco_outer_loop(
            manager=manager,
            model=model,
            inner_optimizer=optimizer,
            sync_every=SYNC_EVERY,
            fragment_sync_delay=delay,
        )
        rounds, exchanges = [], []
        with loop:
            for _ in range(ROUNDS + 1):
                rounds.append(one_round())
                event = manager.last_round
                assert event is not None
                exchanges.append(event.put_s + event.waited_s + event.fetched_s)
        return result | {"round_s": rounds[1:], "exchange_s": exchanges[1:]}

    return run


if __name__ == "__main__":
    main()
