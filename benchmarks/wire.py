"""What do the wire formats save, what do they cost, and what do they do to learning?

    python -m benchmarks.wire

For each format: bytes against fp32, encode and decode in GB/s of fp32 on one core, relative L2 error
on a real pseudo-gradient, and the held-out loss after the same short training through the whole
exchange (memory store, two replicas on threads), mean and spread of three seeds. `loss_change` is
that mean against fp32's, in per cent; the quantised formats have their error feedback on.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tests.support.gang import manager, together
from trainer.model import build_model
from trainer.rendezvous.object_store import open_store
from trainer.rendezvous.wire import FORMATS, Floats, WireFormat
from trainer.train import diloco_train

REPLICAS: Final = 2
TRAINING: Final[dict[str, Any]] = {
    "model_name": "small-random", "seq_len": 64, "batch_size": 8, "total_steps": 120, "sync_every": 20,
    "lr": 3e-3, "warmup_steps": 10, "outer_lr": 1.0, "outer_momentum": 0.0, "eval_every_rounds": 1000,
}  # fmt: skip
LOCAL_STEPS: Final = 20  # that make the pseudo-gradient
CODED_VALUES: Final = 2**24  # 64 MiB, as large chunks as they come
CHUNK: Final = 2**22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    gradient = pseudo_gradient()
    exact = losses("fp32", given.seeds)
    formats = {}
    for name, wire in FORMATS.items():
        found = exact if name == "fp32" else losses(name, given.seeds)
        mean = statistics.mean(found)
        formats[name] = {
            "smaller": round(FORMATS["fp32"].size_of(CODED_VALUES) / wire.size_of(CODED_VALUES), 2),
            **({} if wire.is_exact else speed(wire)),  # fp32 travels as it lies in memory
            "relative_error": float(f"{error(wire, gradient):.2e}"),
            "loss": round(mean, 4),
            "loss_spread": round(max(found) - min(found), 4),
            "loss_change": round(100 * (mean / statistics.mean(exact) - 1), 3),
        }
    print(json.dumps({"benchmark": "wire", "seeds": given.seeds, "formats": formats}))


def speed(wire: WireFormat) -> dict[str, float]:
    """GB of float32 a second, encoded and decoded chunk by chunk; medians of five."""
    values = np.random.default_rng(0).standard_normal(CODED_VALUES, dtype=np.float32)
    chunks = [values[start : start + CHUNK] for start in range(0, CODED_VALUES, CHUNK)]
    encode_s, decode_s = [], []
    for _ in range(5):
        began_s = time.perf_counter()
        coded = [wire.encode(chunk) for chunk in chunks]
        encode_s.append(time.perf_counter() - began_s)
        out = np.empty(CHUNK, np.float32)
        began_s = time.perf_counter()
        for chunk in coded:
            out[:] = wire.decode(memoryview(chunk), CHUNK)
        decode_s.append(time.perf_counter() - began_s)
    gigabytes = values.nbytes / 1e9
    return {
        "encode_gb_per_s": round(gigabytes / statistics.median(encode_s), 2),
        "decode_gb_per_s": round(gigabytes / statistics.median(decode_s), 2),
    }


def pseudo_gradient() -> Floats:
    """Anchor minus local weights after LOCAL_STEPS of AdamW on text, flat."""
    model = build_model("small-random", seq_len=64, seed=0)
    anchor = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long() + 3
    windows = text[: len(text) // 64 * 64].view(-1, 64)
    for step in range(LOCAL_STEPS):
        tokens = windows.roll(-8 * step, 0)[:8]
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    local = torch.cat([p.detach().flatten() for p in model.parameters()])
    difference: Floats = (anchor - local).numpy()
    return difference


def error(wire: WireFormat, values: Floats) -> float:
    """|decoded - values| / |values|, L2."""
    decoded = wire.decode(memoryview(wire.encode(values)), len(values))
    return float(np.linalg.norm(decoded - values) / np.linalg.norm(values))


def losses(wire_dtype: str, seeds: int) -> list[float]:
    """Held-out loss after the same training, by seed."""
    return [_loss(wire_dtype, seed) for seed in range(seeds)]


def _loss(wire_dtype: str, seed: int) -> float:
    store = open_store("memory://")

    def work(rank: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            made = manager(store, rank, REPLICAS, wire_dtype=wire_dtype)
            result = diloco_train(
                manager=made, rank=rank, world_size=REPLICAS, model_dir=Path(folder), seed=seed, **TRAINING
            )
        return float(result["last_loss"])

    return together(REPLICAS, work)[0]


if __name__ == "__main__":
    main()
