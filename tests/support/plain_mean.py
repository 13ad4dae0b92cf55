"""The mean as the rules define it, over whole tensors at once, with nothing of the trainer's own code."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

BLOCK = 256
LARGEST_CODE = {"int8": 127, "int4": 7}

Floats = npt.NDArray[np.float32]


def as_received(values: Floats, wire: str) -> Floats:
    """What the others decode of `values` sent in this format."""
    if wire == "fp32":
        return values.copy()
    if wire == "bf16":
        return torch.from_numpy(values).to(torch.bfloat16).to(torch.float32).numpy()
    largest = np.float32(LARGEST_CODE[wire])
    received = np.empty_like(values)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        scale = np.abs(block).max() / largest
        codes = np.clip(np.rint(block / (scale or np.float32(1))), -largest, largest).astype(np.int8)
        received[start : start + BLOCK] = codes.astype(np.float32) * scale  # an integer has no -0
    return received


def plain_mean(tensors: Sequence[Floats], wire: str = "fp32", mean_wire: str = "fp32") -> Floats:
    """Float32 sum of what is received, in rank order, divided once, rounded as means travel."""
    received = [as_received(tensor, wire) for tensor in tensors]
    total = received[0].copy()
    for part in received[1:]:
        total = total + part
    return as_received(total / np.float32(len(received)), mean_wire)
