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


class Data:
    """The position in this rank's data: kept with the checkpoint, as a real loader's is."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.position = 0

    def next(self) -> torch.Tensor:
        """Inputs of shape (5, 6)."""
        generator = torch.Generator().manual_seed(1000 * self.rank + self.position)
        self.position += 1
        return torch.randn(5, 6, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position = state_dict["position"]


def adamw(**given: Any) -> dict[str, Any]:
    """AdamW and noise: a process that loses moments or random state ends with other weights."""
    return _train(lambda parameters: torch.optim.AdamW(parameters, lr=0.01), noise=0.01, **given)


def sgd(**given: Any) -> dict[str, Any]:
    """SGD without momentum: where all weights are synchronised at once there is nothing else to lose."""
    return _train(lambda parameters: torch.optim.SGD(parameters, lr=0.05), noise=0.0, **given)


def _train(
    make_optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    noise: float,
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
    torch.manual_seed(run["seed"] + 1 + rank)
    data = Data(rank)
    loop = make_diloco_outer_loop(
        manager=manager,
        model=model,
        inner_optimizer=optimizer,
        sync_every=run["sync_every"],
        outer_lr=run["outer_lr"],
        outer_momentum=run["outer_momentum"],
        fragments=run["fragments"],
        fragment_sync_delay=run["fragment_sync_delay"],
        fragment_update_alpha=run["fragment_update_alpha"],
        stateful={"data": data},
    )
    if loop.replayed:
        data.position = loop.first_inner_step
    with loop:
        for _ in range(loop.first_inner_step, run["total_steps"]):
            manager.check_stop()
            optimizer.zero_grad()
            x = data.next()
            noisy = model(x) + noise * torch.randn(5, 3)
            ((noisy - x[:, :3].sin()) ** 2).mean().backward()
            optimizer.step()
    return {"rounds": loop.rounds}
