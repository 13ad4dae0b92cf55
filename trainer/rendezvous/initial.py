"""The weights every replica starts from, agreed once through the log (rule 5).

Random initialisation gives other bits on other processors, and a model folder may be read
twice while somebody changes it. So whoever comes first writes its weights, create-only, and
all load what stands. A run that resumes an earlier one starts from that run's shared state, outer
momentum included; whoever comes first finds it, and the manifest says which round it was.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import safetensors.torch
import torch

from trainer.rendezvous.documents import InitialWeights, Source
from trainer.rendezvous.errors import ForeignObject
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.run_log import RunLog, read_whole
from trainer.rendezvous.waiting import Standing

CHUNK_BYTES: Final = 16 * 2**20
_MOMENTUM: Final = "outer_momentum/"  # before a parameter's name; no module's name holds a slash

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class SharedState:
    """Shared weights and outer momentum by parameter name, and the round of which run left them so."""

    weights: Tensors
    momentum: Tensors
    source: Source | None


def share_initial(
    standing: Standing, named: Tensors, earlier: Callable[[], SharedState] | None = None
) -> SharedState:
    """Write `named` as the run's initial weights, or overwrite them in place by those that stand.

    `earlier` gives the state to write in their place; it is called where none stands yet. Returns the
    state that stands. Raises ForeignObject where it is of another model, naming what differs.
    """
    log, rank = standing.log, standing.rank
    standing.check(0)
    key = log.keys.initial
    data = log.store.find(key)
    if data is None:
        offered = SharedState(named, {}, None) if earlier is None else earlier()
        payload_key = log.keys.initial_payload(rank, standing.claim)
        data = log.store.create(key, publish(log, rank, standing.claim, payload_key, offered).encode())
    address = log.store.address(key)
    initial, _ = read_whole(log.store, key, data, InitialWeights.decode)
    initial.check_is(address, run_id=log.run_id)
    if (initial.rank, initial.claim) == (rank, standing.claim) and initial.source is None:
        return SharedState(named, {}, None)
    state = read_state(log, initial)
    _require_alike(state, named, f"rank {rank}: {address}")
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(state.weights[name])
    return state


def publish(log: RunLog, rank: int, claim: int, payload_key: str, state: SharedState) -> InitialWeights:
    """Put the state's bytes, in safetensors, and return the manifest to write when they are durable."""
    momentum = {f"{_MOMENTUM}{name}": tensor for name, tensor in state.momentum.items()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in {**state.weights, **momentum}.items()}
    data = memoryview(safetensors.torch.save(tensors))
    payload = Payload.put(log.store, payload_key, data, CHUNK_BYTES)
    return InitialWeights(log.run_id, rank, claim, payload, state.source)


def read_state(log: RunLog, manifest: InitialWeights) -> SharedState:
    """The state behind a manifest, verified. Raises DamagedObject or AbsentObject."""
    where = f"shared weights by rank {manifest.rank}"
    loaded = safetensors.torch.load(b"".join(manifest.payload.fetch(log.store, where)))
    return SharedState(
        {name: tensor for name, tensor in loaded.items() if not name.startswith(_MOMENTUM)},
        {n.removeprefix(_MOMENTUM): tensor for n, tensor in loaded.items() if n.startswith(_MOMENTUM)},
        manifest.source,
    )


def _require_alike(state: SharedState, named: Tensors, what: str) -> None:
    loaded = state.weights
    wrong = sorted(
        name
        for name in loaded.keys() | named.keys()
        if name not in loaded or name not in named or not _alike(loaded[name], named[name])
    )
    wrong += sorted(n for n, t in state.momentum.items() if n not in named or not _alike(t, named[n]))
    if wrong:
        raise ForeignObject(
            f"{what} is of another model than this replica's: {len(wrong)} tensors are missing, extra or of "
            f"another shape or type, first {wrong[:3]}. Build the same on all ranks."
        )


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (first.shape, first.dtype) == (second.shape, second.dtype)
