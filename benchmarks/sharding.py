"""From which size on is averaging in slices faster than everybody averaging the whole?

    python -m benchmarks.sharding

Slices save bytes and cost one more phase of round trips, so the answer depends on what a request
takes. The server answers as S3 does within a region: LATENCY_S before each answer, and each
connection at BYTES_PER_S. `from_mb` is the smallest size measured from which slices win by more than
the noise of the medians at every size above; rendezvous/geometry.py's SHARD_FROM_ELEMENTS follows it.
"""

import argparse
import json
from typing import Any, Final

from benchmarks.exchange import measured_rounds, setup
from benchmarks.gang import Workers, keep_freed_memory
from tests.support.fault_s3 import FaultS3

LATENCY_S: Final = (
    0.03  # first byte of a small object, S3 in its region (S3 performance guidelines: 100 ms at most)
)
BYTES_PER_S: Final = 85e6  # one connection (S3 performance guidelines)
SIZES_MB: Final = (1, 4, 16, 64)
CLEARLY: Final = 0.97  # slices win where they take at most this share of the whole's time


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    keep_freed_memory()
    found = {f"replicas_{n}": compare(n) for n in (3, 4, 8)}
    print(json.dumps({"benchmark": "sharding", "latency_s": LATENCY_S, **found}))


def compare(replicas: int) -> dict[str, Any]:
    rows: dict[int, tuple[float, float]] = {}
    for mb in SIZES_MB:
        with (
            FaultS3(
                latency_s=LATENCY_S, upload_bytes_per_s=BYTES_PER_S, download_bytes_per_s=BYTES_PER_S
            ) as server,
            Workers(replicas, setup, server.address, "s3://bucket", replicas, mb) as workers,
        ):
            sharded, whole = (
                measured_rounds(workers, way, 3, server)["wall_s"] for way in ("sharded", "whole")
            )
        rows[mb] = (sharded, whole)
    wins = [mb for mb, (sharded, whole) in rows.items() if sharded <= CLEARLY * whole]
    loses = [mb for mb in rows if mb not in wins]
    steady = [mb for mb in wins if all(mb > other for other in loses)]
    return {
        "from_mb": min(steady, default=None),
        "seconds_sharded_and_whole": {str(mb): pair for mb, pair in rows.items()},
    }


if __name__ == "__main__":
    main()
