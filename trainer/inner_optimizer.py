"""The inner optimizer and its learning rate."""

import math
from typing import Final

import torch
from torch import nn

from trainer.run_spec import RunSpec

FINAL_LR_SHARE: Final = 0.1  # the cosine ends at a tenth of the peak, as usual for language models


def make_inner_optimizer(model: nn.Module, spec: RunSpec) -> torch.optim.Optimizer:
    """AdamW over every parameter of `model` that trains."""
    return torch.optim.AdamW(
        model.parameters(), lr=spec.lr, betas=(0.9, 0.95), weight_decay=spec.weight_decay
    )


def learning_rate(spec: RunSpec, step: int) -> float:
    """The inner learning rate of inner step `step`, from 0: linear warm-up, then a cosine."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(spec.total_steps - spec.warmup_steps, 1)
    share = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return spec.lr * share
