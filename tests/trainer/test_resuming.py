"""A replica that stops and is resumed ends with the bits of one that never stopped."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import torch
from torch import nn

from tests.support.gang import manager, together
from tests.support.toy import Replica, Settings, adamw, loss, replica
from trainer import random_state
from trainer.diloco import make_diloco_outer_loop
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.state_hash import weights_hash
from trainer.state_tree import pack, unpack

FP32, INT8, INT4 = ({"wire_dtype": name} for name in ("fp32", "int8", "int4"))
CASES = [
    (Settings(), FP32),
    (Settings(delay=2), FP32),
    (Settings(fragments=2), FP32),
    (Settings(fragments=2, delay=1), FP32),
    (Settings(delay=2, alpha=0.5), FP32),
    (Settings(fragments=2, delay=1, alpha=0.5), FP32),
    (Settings(delay=1), INT8),
    (Settings(fragments=2, delay=1, alpha=0.5), INT8),
    (Settings(fragments=2), INT4),
]
every_case = pytest.mark.parametrize(("s", "wire"), CASES, ids=str)


def ended(r: Replica) -> tuple[str, str]:
    """Hashes of the shared and of the local weights."""
    local = weights_hash(r.model.named_parameters())
    return r.manager.weights_hash(), local


def undisturbed(size: int, s: Settings, wire: dict[str, str]) -> list[tuple[str, str]]:
    store = open_store("memory://")

    def work(rank: int) -> tuple[str, str]:
        r = replica(store, rank, size, s, seed=0, **wire)
        r.train(s.total_steps, s)
        return ended(r)

    return together(size, work)


class Killed(Exception):
    pass


def kill(step: int) -> Callable[[int], None]:
    """Ends the process before inner step `step`."""

    def before(at: int) -> None:
        if at == step:
            raise Killed

    return before


@dataclass(frozen=True)
class Gang:
    """Two ranks of one run, each with a checkpoint folder."""

    folder: Path
    s: Settings
    wire: dict[str, str]
    store: ObjectStore = field(default_factory=lambda: open_store("memory://"))

    def replica(self, rank: int) -> Replica:
        return replica(self.store, rank, 2, self.s, seed=0, checkpoints=self.folder, **self.wire)

    def stopped(self, rank: int, after: int) -> tuple[str, str]:
        """Rank 1 is stopped after a round, rank 0 goes on: its checkpoint is at the head of the log."""
        r = self.replica(rank)
        if rank == 1:
            r.train(after * self.s.per_round, self.s)
            r = self.replica(rank)
            assert (r.loop.rounds, r.loop.replayed) == (after, False)
        r.train(self.s.total_steps, self.s)
        return ended(r)

    def killed(self, rank: int, in_round: int) -> tuple[str, str]:
        """Rank 1 dies after the round's outer step and before its checkpoint: it is a round behind."""
        r = self.replica(rank)
        if rank == 1:
            r.train(in_round * self.s.per_round, self.s)
            assert r.loop._checkpoints is not None
            r.loop._checkpoints.write = no_more  # type: ignore[method-assign]
            with pytest.raises(Killed):
                r.train(self.s.total_steps, self.s)
            assert r.loop.rounds == in_round + 1
            r = self.replica(rank)
            assert (r.loop.rounds, r.loop.replayed) == (in_round, False)
        r.train(self.s.total_steps, self.s)
        return ended(r)


def no_more(round_index: int, state: Any) -> None:
    raise Killed


@every_case
def test_stopped_after_any_round_and_resumed_it_ends_with_the_same_bits(
    tmp_path: Path, s: Settings, wire: dict[str, str]
) -> None:
    expected = undisturbed(2, s, wire)
    for after in range(1, s.total_steps // s.per_round):
        gang = Gang(tmp_path / str(after), s, wire)
        assert together(2, partial(gang.stopped, after=after)) == expected, f"after round {after - 1}"


@every_case
def test_killed_between_a_commit_and_its_checkpoint_it_redoes_the_round(
    tmp_path: Path, s: Settings, wire: dict[str, str]
) -> None:
    """Its own contribution stands, the round is committed: the inner steps are taken again."""
    expected = undisturbed(2, s, wire)
    for in_round in range(s.total_steps // s.per_round):
        gang = Gang(tmp_path / str(in_round), s, wire)
        assert together(2, partial(gang.killed, in_round=in_round)) == expected, f"in round {in_round}"


@every_case
def test_killed_at_any_inner_step_it_ends_with_the_same_bits(
    tmp_path: Path, s: Settings, wire: dict[str, str]
) -> None:
    """Also with an exchange in flight, whether or not its contribution arrives; alone, so that it's quick."""
    expected = undisturbed(1, s, wire)
    for step in range(s.total_steps):
        store, folder = open_store("memory://"), tmp_path / str(step)
        r = replica(store, 0, 1, s, seed=0, checkpoints=folder, **wire)
        with pytest.raises(Killed):
            r.train(s.total_steps, s, before=kill(step))
        r = replica(store, 0, 1, s, seed=0, checkpoints=folder, **wire)
        r.train(s.total_steps, s)
        assert [ended(r)] == expected, f"killed before inner step {step}"


@pytest.mark.parametrize(
    ("s", "wire"),
    [(Settings(total_steps=24, delay=2), FP32), (Settings(total_steps=24, fragments=2, alpha=0.5), INT8)],
    ids=str,
)
def test_further_behind_it_replays_the_log_from_its_checkpoint(
    tmp_path: Path, s: Settings, wire: dict[str, str]
) -> None:
    """Its last checkpoints were lost, and what came before the one it has isn't needed any more.

    It then trains on with its peer. Shared weights and momentum are the log's, local weights the shared.
    """
    store, rounds = open_store("memory://"), s.total_steps // s.per_round

    def train(rank: int, until: int) -> tuple[str, str]:
        r = replica(store, rank, 2, s, seed=0, checkpoints=tmp_path, **wire)
        r.train(until * s.per_round, s)
        return ended(r)

    together(2, lambda rank: train(rank, 2))
    shutil.copytree(tmp_path / "rank_0001", tmp_path / "kept")
    at_four = together(2, lambda rank: train(rank, 4))
    shutil.rmtree(tmp_path / "rank_0001")
    (tmp_path / "kept").rename(tmp_path / "rank_0001")
    obstore.delete(store._store, [k for k in store.keys("diloco-data/run") if re.search("_00000[01]/", k)])
    store.put(store_key := "diloco-rdv/run/initial/manifest.json", b"gone")
    assert store.get(store_key) == b"gone"

    behind = replica(store, 1, 2, s, seed=9, checkpoints=tmp_path, **wire)
    assert (behind.loop.rounds, behind.loop.replayed) == (4, True)
    assert behind.loop.first_inner_step == 4 * s.per_round
    assert behind.manager.weights_hash() == at_four[0][0]
    assert weights_hash(behind.model.named_parameters()) == behind.manager.weights_hash()
    assert behind.manager.unsent == {}

    def on(rank: int) -> str:
        r = behind if rank == 1 else replica(store, 0, 2, s, checkpoints=tmp_path, **wire)
        r.train(s.total_steps, s)
        assert r.loop.rounds == rounds
        return r.manager.weights_hash()

    first, second = together(2, on)
    assert first == second


class Dropping(nn.Module):
    """Draws from torch's random state at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        result: torch.Tensor = self.dropout(self.layer(x))
        return result


class Counter:
    """Something of the trainer's own."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def dropping(store: ObjectStore, folder: Path, until: int) -> tuple[str, float, int, tuple[float, float]]:
    """A user's own trainer: shared weights, what its buffer and its counter hold, the next random numbers."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model, counter = Dropping(), Counter()
    optimizer, made = adamw(model), manager(store, 0, 1, folder)
    with make_diloco_outer_loop(
        manager=made, model=model, inner_optimizer=optimizer, sync_every=3, stateful={"counter": counter}
    ) as loop:
        for step in range(loop.first_inner_step, until):
            counter.count += 1 + int(random.random() * 10) + np.random.randint(10)
            optimizer.zero_grad()
            loss(model, 0, step).backward()
            optimizer.step()
    drawn = random.random(), float(torch.rand(()))
    return made.weights_hash(), float(model.seen), counter.count, drawn


def test_random_states_buffers_and_the_trainers_own_state_come_back(tmp_path: Path) -> None:
    expected = dropping(open_store("memory://"), tmp_path / "one", 9)
    store = open_store("memory://")
    dropping(store, tmp_path / "two", 6)
    assert dropping(store, tmp_path / "two", 9) == expected


def test_random_states_survive_json() -> None:
    tensors: dict[str, torch.Tensor] = {}
    tree = json.loads(json.dumps(pack(random_state.capture(), "random", tensors)))
    drawn = [(random.random(), np.random.rand(), float(torch.rand(()))) for _ in range(2)]
    random_state.restore(unpack(tree, tensors))
    again = [(random.random(), np.random.rand(), float(torch.rand(()))) for _ in range(2)]
    assert drawn == again
