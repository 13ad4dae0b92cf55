"""The weights every replica starts from, agreed once through the log (rule 5).

Random initialisation gives other bits on other processors, and a model folder may be read
twice while somebody changes it. So whoever comes first writes its weights, create-only, and
all load what stands.
"""

from typing import Final

import safetensors.torch
import torch

from trainer.rendezvous.documents import InitialWeights
from trainer.rendezvous.errors import ForeignObject
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.run_log import read_whole
from trainer.rendezvous.waiting import Standing

CHUNK_BYTES: Final = 16 * 2**20


def share_initial(standing: Standing, named: dict[str, torch.Tensor]) -> None:
    """Write `named` as the run's initial weights, or overwrite them in place by those that stand.

    Raises ForeignObject where the run's weights are of another model, naming what differs.
    """
    log, rank = standing.log, standing.rank
    standing.check(0)
    key = log.keys.initial
    data = log.store.find(key)
    if data is None:
        data = log.store.create(key, _publish(standing, named).encode())
    address = log.store.address(key)
    initial, _ = read_whole(log.store, key, data, InitialWeights.decode)
    initial.check_is(address, run_id=log.run_id)
    if (initial.rank, initial.claim) == (rank, standing.claim):
        return
    where = f"initial weights by rank {initial.rank}"
    loaded = safetensors.torch.load(b"".join(initial.payload.fetch(log.store, where)))
    wrong = sorted(
        name
        for name in loaded.keys() | named.keys()
        if name not in loaded or name not in named or not _alike(loaded[name], named[name])
    )
    if wrong:
        raise ForeignObject(
            f"rank {rank}: {address} is of another model than this replica's: {len(wrong)} tensors are "
            f"missing, extra or of another shape or type, first {wrong[:3]}. Build the same on all ranks."
        )
    with torch.no_grad():
        for name, tensor in named.items():
            tensor.copy_(loaded[name])


def _publish(standing: Standing, named: dict[str, torch.Tensor]) -> InitialWeights:
    log, rank, claim = standing.log, standing.rank, standing.claim
    data = safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in named.items()})
    payload = Payload.put(log.store, log.keys.initial_payload(rank, claim), memoryview(data), CHUNK_BYTES)
    return InitialWeights(log.run_id, rank, claim, payload)


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return (first.shape, first.dtype) == (second.shape, second.dtype)
