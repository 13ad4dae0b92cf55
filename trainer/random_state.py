"""The random states of a process: Python's, numpy's, torch's, each accelerator's."""

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """The states, as a tree that a checkpoint can hold."""
    kind, words, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (str(kind), [int(word) for word in words], *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(states: dict[str, Any]) -> None:
    """Go on drawing as the process did whose states these are.

    On a machine with other accelerators than that one's, their states are left as they are: the
    numbers drawn there differ between kinds of accelerator anyway.
    """
    random.setstate(states["python"])
    kind, words, *rest = states["numpy"]
    np.random.set_state((kind, np.array(words, np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
