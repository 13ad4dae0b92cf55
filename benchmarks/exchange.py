"""What does one exchange cost, and how far is that from the seed's way and from the wire itself?

    python -m benchmarks.exchange --replicas 4 --mb 256     ours against the seed's way
    python -m benchmarks.exchange --replicas 2 --mb 2048 --ours
    python -m benchmarks.exchange --scaling --mb 64         bytes and requests as N grows

N processes and a fast S3 server on loopback, all in the same run on the same cores; medians of
`--repeat` rounds. `ratio` is the seed's wall time over ours, `memory_ratio` likewise of a replica's
peak extra memory; `over_floor` is our wall time over that of moving the same bytes between the same
processes through bare sockets. `whole_s` is the ablation: our client, every rank averaging all.
"""

import argparse
import json
import statistics
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.gang import Cost, Workers, keep_freed_memory
from benchmarks.loopback import floor_s
from tests.support.fault_s3 import FaultS3
from trainer.rendezvous import geometry
from trainer.rendezvous.object_store import PART_BYTES

POLL_S: Final = 0.02
# S3 standard storage: a thousand PUT or LIST, a thousand GET, in dollars (us-east-1).
PUT_DOLLARS, GET_DOLLARS = 5e-6, 4e-7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--mb", type=int, default=256, help="size of the tensor, MiB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ours", action="store_true", help="ours alone, through file:// too")
    parser.add_argument("--scaling", action="store_true")
    given = parser.parse_args()
    keep_freed_memory()
    if given.scaling:
        found = scaling(given.mb)
    elif given.ours:
        found = ours_alone(given.replicas, given.mb, given.repeat)
    else:
        found = against_the_seed(given.replicas, given.mb, given.repeat)
    print(json.dumps({"benchmark": "exchange", "replicas": given.replicas, "mb": given.mb} | found))


def against_the_seed(replicas: int, mb: int, repeat: int) -> dict[str, Any]:
    with FaultS3() as server:
        with Workers(replicas, setup, server.address, "s3://bucket", replicas, mb) as workers:
            ours = measured_rounds(workers, "sharded", repeat, server)
            whole = measured_rounds(workers, "whole", repeat, server)
            seed = measured_rounds(workers, "seed", repeat, server)
        floor = floor_s(replicas, ours["sent_bytes"], ours["received_bytes"], repeat)
    return {
        "ratio": round(seed["wall_s"] / ours["wall_s"], 2),
        "memory_ratio": round(seed["extra_mb"] / max(ours["extra_mb"], 0.1), 1),
        "over_floor": round(ours["wall_s"] / floor, 2),
        "ours": ours,
        "whole_s": whole["wall_s"],
        "seed": seed,
        "floor_s": round(floor, 3),
    }


def ours_alone(replicas: int, mb: int, repeat: int) -> dict[str, Any]:
    """`extra_tensors`: peak extra memory of a replica, in tensors; through the server and a folder.

    The snapshot of the pseudo-gradient is made within what is measured, and so counted.
    """
    found: dict[str, Any] = {}
    with (
        FaultS3() as server,
        Workers(replicas, setup, server.address, "s3://bucket", replicas, mb) as workers,
    ):
        found["s3"] = measured_rounds(workers, "snapshot", repeat, server)
    with tempfile.TemporaryDirectory() as folder:
        uri = Path(folder).as_uri()
        with Workers(replicas, setup, "", uri, replicas, mb) as workers:
            found["file"] = measured_rounds(workers, "snapshot", repeat, None)
    worst = max(part["extra_mb"] for part in found.values())
    return {"extra_tensors": round(worst * 1e6 / (mb * 2**20), 3), **found}


def scaling(mb: int) -> dict[str, Any]:
    """Bytes and requests of a rank for N = 2, 4, 8, 16 beside what the formulas say.

    Writes: a large object takes its parts and two more requests, a small one a single request; and
    four documents a rank: claim, contribution, roster, announced slice. Payload reads: every peer's
    chunks of the own slice, and the chunks of every other slice.
    """
    rows = []
    for replicas in (2, 4, 8, 16):
        with (
            FaultS3() as server,
            Workers(replicas, setup, server.address, "s3://bucket", replicas, mb) as workers,
        ):
            ours = measured_rounds(workers, "sharded", 1, server)
            payload_gets = sum(v == "GET" and k.startswith("diloco-data/") for v, k in server.requests)
        tensor, sharded = mb * 2**20, replicas >= geometry.SHARD_FROM_RANKS
        cut = geometry.Geometry.of(tensor // 4, replicas)
        if sharded:
            puts = _put_requests(tensor) + _put_requests(tensor // replicas) + 4
            gets = 2 * (replicas - 1) * cut.chunks_per_slice
        else:
            puts, gets = _put_requests(tensor) + 3, (replicas - 1) * cut.chunks
        rows.append(
            {
                "replicas": replicas,
                "up": round(ours["sent_bytes"] / tensor, 3),
                "down": round(ours["received_bytes"] / tensor, 3),
                "bound": round(2 * (replicas - 1) / replicas, 3),
                "puts": ours["puts_a_rank"],
                "puts_by_formula": puts,
                "payload_gets": payload_gets / replicas,
                "payload_gets_by_formula": gets,
                "gets_with_polls": ours["gets_a_rank"],
            }
        )
    return {"mb": mb, "scaling": rows}


def _put_requests(size_bytes: int) -> int:
    return 1 if size_bytes < PART_BYTES else size_bytes // PART_BYTES + 2


def measured_rounds(workers: Workers, way: str, repeat: int, server: FaultS3 | None) -> dict[str, Any]:
    """Medians over some rounds, after one that warms up."""
    walls, costs, puts, gets = [], [], 0, 0
    for attempt in range(repeat + 1):
        if server is not None:
            with server.lock:
                server.objects.clear()
                server.requests.clear()
        found: list[Cost] = workers.run(way, uuid.uuid4().hex)
        if attempt == 0:
            continue
        walls.append(max(cost.wall_s for cost in found))
        costs += found
        if server is not None:
            verbs = [verb for verb, _ in server.requests]
            puts += sum(verb in ("PUT", "POST") for verb in verbs)
            gets += len(verbs) - sum(verb in ("PUT", "POST") for verb in verbs)
    size = len(costs) / repeat
    return {
        "wall_s": round(statistics.median(walls), 3),
        "extra_mb": round(statistics.median(cost.extra_bytes for cost in costs) / 1e6, 1),
        "cpu_s": round(statistics.median(cost.cpu_s for cost in costs), 3),
        "sent_bytes": max(cost.result[0] for cost in costs),
        "received_bytes": max(cost.result[1] for cost in costs),
        "puts_a_rank": round(puts / repeat / size, 1),
        "gets_a_rank": round(gets / repeat / size, 1),
        "dollars_a_round": round((puts * PUT_DOLLARS + gets * GET_DOLLARS) / repeat, 6),
    }


def setup(rank: int, address: str, uri: str, size: int, mb: int) -> Callable[[str, str], tuple[int, int]]:
    """One replica's process: everything imported, one tensor in memory, nothing connected twice."""
    import os

    os.environ |= {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    from concurrent.futures import Future

    import s3fs
    import torch

    from benchmarks import seed_way
    from trainer.rendezvous.allreduce import ObjectStoreAllReduce
    from trainer.rendezvous.base import Base
    from trainer.rendezvous.object_store import open_store
    from trainer.rendezvous.run_log import RunLog
    from trainer.rendezvous.waiting import Standing, WaitBounds

    torch.set_num_threads(1)
    tensor = torch.randn(mb * 2**18, generator=torch.Generator().manual_seed(rank))
    tensor_bytes = tensor.numel() * 4
    store = open_store(uri)
    fs = s3fs.S3FileSystem(endpoint_url=address, key="x", secret="x") if address else None  # noqa: S106

    def run(way: str, run_id: str) -> tuple[int, int]:
        if way == "seed":
            seed_way.exchange(fs, f"bucket/{run_id}", rank, size, tensor, POLL_S)
            return tensor_bytes, (size - 1) * tensor_bytes
        geometry.SHARD_FROM_ELEMENTS = 2**62 if way == "whole" else 0  # type: ignore[misc]
        values = tensor.clone() if way == "snapshot" else tensor
        bounds = WaitBounds(600, 600, 600, POLL_S)
        log = RunLog(store, run_id)
        standing = Standing(log, rank, log.take_claim(rank), threading.Event())
        shared: Future[str] = Future()  # what is measured is the exchange; the seed hashes no weights
        shared.set_result("base")
        base = Base(0, tensor.numel(), "layout", shared)
        event = ObjectStoreAllReduce(standing, size, bounds).run(0, values.numpy(), base).event
        return event.sent_bytes, event.received_bytes

    return run


if __name__ == "__main__":
    main()
