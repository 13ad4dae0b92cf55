"""A model of a few hundred numbers and its data: learning at the speed of a unit test."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.support.gang import manager
from trainer.diloco import DiLoCoLoop, make_diloco_outer_loop
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.object_store import ObjectStore
from trainer.resuming import Stateful

_RANDOM_STATE = threading.Lock()  # torch's random state is the process's, ranks are threads here


class Toy(nn.Module):
    """Three layers; `seed` draws the weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with _RANDOM_STATE, torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        result: torch.Tensor = self.layers[-1](x)
        return result


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """The loss of one inner step: a function of the model, the rank and the step alone."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(5, 6, generator=generator)
    return ((model(x) - x[:, :3].sin()) ** 2).mean()


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class Settings:
    """A DiLoCo run of the toy."""

    total_steps: int = 12
    sync_every: int = 4
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    @property
    def per_round(self) -> int:
        return self.sync_every // self.fragments


@dataclass
class Replica:
    """One replica through the store, stepped by hand."""

    rank: int
    model: Toy
    optimizer: torch.optim.AdamW
    manager: ObjectStoreManager
    loop: DiLoCoLoop

    def train(self, until_step: int, settings: Settings, before: Callable[[int], None] | None = None) -> None:
        """Run inner steps from the head of the log on; `before(step)` is called before each."""
        with self.loop:
            for step in range(self.loop.rounds * settings.per_round, until_step):
                if before is not None:
                    before(step)
                self.optimizer.zero_grad()
                loss(self.model, self.rank, step).backward()
                self.optimizer.step()

    def shared(self) -> dict[str, torch.Tensor]:
        self.loop.load_shared()
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


def replica(
    store: ObjectStore,
    rank: int,
    world_size: int,
    settings: Settings,
    *,
    seed: int | None = None,
    checkpoints: Path | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    **options: Any,
) -> Replica:
    """A replica ready to train. Its own random weights differ, unless `seed` says otherwise.

    `options` as ObjectStoreAllReduce's.
    """
    model = Toy(seed=rank if seed is None else seed)
    optimizer = adamw(model)
    made = manager(store, rank, world_size, checkpoints, **options)
    loop = make_diloco_outer_loop(
        manager=made,
        model=model,
        inner_optimizer=optimizer,
        sync_every=settings.sync_every,
        outer_lr=settings.outer_lr,
        outer_momentum=settings.outer_momentum,
        fragments=settings.fragments,
        fragment_sync_delay=settings.delay,
        fragment_update_alpha=settings.alpha,
        stateful=stateful,
    )
    return Replica(rank, model, optimizer, made, loop)
