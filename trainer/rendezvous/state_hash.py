"""Names for weights: two replicas hold the same bits if and only if the names are equal.

SHA-256 over names, dtypes, shapes and bytes in the order of the names, so that anyone can
recompute it from a saved safetensors file.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def weights_hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Hash of named tensors, whatever order they come in. Hexadecimal."""
    state = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        state.update(_header(name, tensor))
        state.update(tensor_bytes(tensor))
    return state.hexdigest()


def shared_state_hash(fragment_state: Mapping[str, Any]) -> str:
    """Hash of what torchft registers for a fragment: its shared weights and its outer optimizer.

    The base hash of a contribution: momentum belongs to it, since equal weights with unequal
    momentum part ways one round later.
    """
    named = [(f"parameter {name}", t) for name, t in fragment_state["original_parameters"].items()]
    optimizer = fragment_state["outer_optimizer"]
    for index, slots in optimizer["state"].items():
        named += [(f"outer {index} {k}", v) for k, v in slots.items() if isinstance(v, torch.Tensor)]
    settings = json.dumps(optimizer["param_groups"], sort_keys=True, default=str)
    return hashlib.sha256((weights_hash(named) + settings).encode()).hexdigest()


def layout_hash(named_shapes: Iterable[tuple[str, torch.Size, torch.dtype]]) -> str:
    """Hash of a fragment's names, shapes and dtypes in the order in which they are packed."""
    rows = [[name, list(shape), str(dtype)] for name, shape, dtype in named_shapes]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes without a copy where it already lies on the CPU in order."""
    flat = tensor.detach().to("cpu").contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _header(name: str, tensor: torch.Tensor) -> bytes:
    return json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
