"""DiLoCo's arithmetic in one process: N models in turn, the mean, the trainer's own outer step.

Nothing is exchanged here: that a run through the bucket is bitwise DiLoCo written out is what
tests/trainer/test_diloco.py holds, and so a learning curve needs no bucket. The inner optimizer,
its learning rate and the outer step are the trainer's.
"""

import hashlib
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.inner_optimizer import learning_rate, make_inner_optimizer
from trainer.outer_optimizer import OuterNesterov
from trainer.rendezvous.wire import FORMATS, WireFormat
from trainer.run_spec import RunSpec, parse

HELD_OUT_WINDOWS: Final = 256
_EVAL_BATCH: Final = 32

# hidden size, feed-forward size, layers, heads; tied embeddings of bytes
SIZES: Final = {"1M": (128, 320, 5, 4), "quick": (64, 160, 3, 4)}


@dataclass(frozen=True)
class Setting:
    """One way to train. `replicas` of 1 with `batch_size` of all replicas is data-parallel training."""

    replicas: int = 4
    batch_size: int = 8
    steps: int = 300
    sync_every: int = 20
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    lr: float = 3e-3
    inner_optimizer: str = "adamw"
    wire_dtype: str = "fp32"  # how pseudo-gradients travel, error feedback included

    def spec(self, seed: int) -> RunSpec:
        return parse(
            {
                "total_steps": self.steps, "sync_every": self.sync_every, "lr": self.lr, "seed": seed,
                "inner_optimizer": self.inner_optimizer, "warmup_steps": self.steps // 15,
            }
        )  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Bytes, shuffled windows of shape (windows, seq_len), int64."""

    train: torch.Tensor
    held_out: torch.Tensor

    def batch(self, setting: Setting, seed: int, step: int, rank: int, ranks: int) -> torch.Tensor:
        """Rows of a step; those of all ranks together are the data-parallel step's."""
        size = setting.batch_size // ranks if setting.replicas == 1 else setting.batch_size
        start = ((step * ranks + rank) * size + seed * 1_000_003) % (len(self.train) - size)
        return self.train[start : start + size].long()


def standard_library(seq_len: int, most_bytes: int = 24_000_000) -> Text:
    """The Python standard library's source, one file in ten held out, whole."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts)
    kept: dict[bool, list[bytes]] = {True: [], False: []}
    for path in files:
        name = path.relative_to(root).as_posix().encode()
        kept[hashlib.sha256(name).digest()[0] % 10 == 0].append(path.read_bytes())

    def windows(held_out: bool) -> torch.Tensor:
        data = np.frombuffer(b"\n".join(kept[held_out])[:most_bytes], np.uint8)
        rows = torch.from_numpy(data[: len(data) // seq_len * seq_len].copy()).view(-1, seq_len)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        return rows[order]

    return Text(windows(False), windows(True)[:HELD_OUT_WINDOWS])


def make_model(size: str, seq_len: int, seed: int) -> nn.Module:
    """A Llama over bytes from random weights."""
    hidden, feed_forward, layers, heads = SIZES[size]
    config = LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=feed_forward, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=seq_len,
        tie_word_embeddings=True, dtype="float32", use_cache=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)  # type: ignore[no-any-return]


def train(setting: Setting, text: Text, size: str, seed: int) -> float:
    """Train as `setting` says; the held-out loss of the shared weights, nats per byte."""
    seq_len = text.train.shape[1]
    shared = make_model(size, seq_len, seed)
    spec = setting.spec(seed)
    outer = OuterNesterov(shared.parameters(), lr=setting.outer_lr, momentum=setting.outer_momentum)
    locals_ = [make_model(size, seq_len, seed) for _ in range(setting.replicas)]
    optimizers = [make_inner_optimizer(model, spec) for model in locals_]
    ranks = max(setting.replicas, 1)
    wire = Wire(FORMATS[setting.wire_dtype], setting.replicas)
    for first in range(0, setting.steps, setting.sync_every):
        for rank, (model, optimizer) in enumerate(zip(locals_, optimizers, strict=True)):
            for step in range(first, first + setting.sync_every):
                _inner_step(model, optimizer, text.batch(setting, seed, step, rank, ranks), spec, step)
        _outer_step(shared, outer, locals_, wire)
    return evaluate(shared, text)


def _inner_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, spec: RunSpec, step: int
) -> None:
    optimizer.zero_grad()
    model(input_ids=rows, labels=rows).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(spec, step)
    optimizer.step()


@dataclass
class Wire:
    """What each replica's pseudo-gradient is after its wire format; what that loses is sent the next time."""

    format: WireFormat
    replicas: int
    unsent: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def through(self, replica: int, index: int, values: torch.Tensor) -> torch.Tensor:
        if self.format.is_exact:
            return values
        whole = values + self.unsent.get((replica, index), torch.zeros(()))
        flat = whole.flatten().numpy()
        decoded = self.format.decode(memoryview(self.format.encode(flat)), len(flat))
        arrived = torch.from_numpy(decoded.copy()).view_as(values)
        if self.format.has_scales:
            self.unsent[replica, index] = whole - arrived
        return arrived


@torch.no_grad()
def _outer_step(shared: nn.Module, outer: OuterNesterov, locals_: list[nn.Module], wire: Wire) -> None:
    """Algorithm 1's outer step, then everybody starts from the shared weights."""
    replicas = [list(model.parameters()) for model in locals_]
    for index, parameter in enumerate(shared.parameters()):
        sent = [wire.through(rank, index, parameter - own[index]) for rank, own in enumerate(replicas)]
        parameter.grad = torch.stack(sent).mean(dim=0)
    outer.step()
    for replica in replicas:
        for theirs, ours in zip(replica, shared.parameters(), strict=True):
            theirs.copy_(ours)


@torch.no_grad()
def evaluate(model: nn.Module, text: Text) -> float:
    """Held-out loss, nats per byte."""
    losses = [
        model(input_ids=rows.long(), labels=rows.long()).loss.item()
        for rows in text.held_out.split(_EVAL_BATCH)
    ]
    return sum(losses) / len(losses)
