"""The trainer functions of the schedules: some hundred numbers, learning through the public contract.

Each inner step is a function of the weights, the inner optimizer's state, the rank, the step and
torch's random state, so that whatever of these a relaunch gets wrong shows in the weights' hash.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.diloco import make_diloco_outer_loop
from trainer.rendezvous.manager import ObjectStoreManager

WIDTH = 24  # 1443 values: three slices of a block at least in each of two fragments


class Net(nn.Module):
    """Four layers."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(6, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 3)]
        self.layers = nn.ModuleList([nn.Linear(*size) for size in sizes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        result: torch.Tensor = self.layers[-1](x)
        return result


def adamw(**given: Any) -> dict[str, Any]:
    """Inner AdamW: a process that loses the optimizer's state ends with other weights."""
    return _train(lambda parameters: torch.optim.AdamW(parameters, lr=0.01), **given)


def sgd(**given: Any) -> dict[str, Any]:
    """Inner SGD without momentum: nothing but the weights to lose."""
    return _train(lambda parameters: torch.optim.SGD(parameters, lr=0.05), **given)


def _train(
    make_optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    *,
    manager: ObjectStoreManager,
    rank: int,
    world_size: int,
    model_dir: Path,
    **run: Any,
) -> dict[str, Any]:
    torch.manual_seed(run["seed"])
    model = Net()
    optimizer = make_optimizer(model.parameters())
    with make_diloco_outer_loop(
        manager=manager,
        model=model,
        inner_optimizer=optimizer,
        sync_every=run["sync_every"],
        outer_lr=run["outer_lr"],
        outer_momentum=run["outer_momentum"],
        fragments=run["fragments"],
        fragment_sync_delay=run["fragment_sync_delay"],
        fragment_update_alpha=run["fragment_update_alpha"],
    ) as loop:
        for step in range(loop.rounds * (run["sync_every"] // run["fragments"]), run["total_steps"]):
            manager.check_stop()
            optimizer.zero_grad()
            _loss(model, rank, step).backward()
            optimizer.step()
    return {"rounds": loop.rounds}


def _loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(5, 6, generator=generator)
    loss: torch.Tensor = ((model(x) - x[:, :3].sin()) ** 2).mean()
    return loss
