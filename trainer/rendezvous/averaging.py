"""The mean of a roster's payloads: the same bits on every rank (rule 5).

Sums run in rank order, in float32, and divide once at the end; each operation rounds once, so
no order of arrival, thread or processor changes a bit. Works through the tensor chunk by chunk,
so an exchange holds a few chunks above the snapshot, not one tensor per peer (rule 15).
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import torch

from trainer.rendezvous.documents import Contribution
from trainer.rendezvous.object_store import ObjectStore

STREAMS: Final = 8  # chunks in flight; S3 gives some 85 to 90 MB/s a connection


def average_into(
    out: torch.Tensor, members: Sequence[Contribution], store: ObjectStore, *, own: Contribution | None = None
) -> int:
    """Replace `out` by the mean of the members' payloads and return the bytes fetched.

    `out` is a flat float32 tensor on the CPU. Where `own` is a member, `out` holds that member's
    payload on entry and it is not fetched again. Raises DamagedObject or AbsentObject, naming rank,
    round and key; `out` is then worthless.
    """
    chunks = range(len(members[0].payload.chunk_crc64nvme))
    reads = [(index, member) for index in chunks for member in members if member is not own]
    fetched_bytes = 0
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="fetch") as pool:
        waiting = iter(reads)
        ahead: deque[Future[bytearray]] = deque()

        def next_chunk() -> bytearray:
            while len(ahead) <= STREAMS and (read := next(waiting, None)) is not None:
                index, member = read
                where = f"round {member.round} rank {member.rank}"
                ahead.append(pool.submit(member.payload.fetch_chunk, store, index, where))
            return ahead.popleft().result()

        try:
            for index in chunks:
                piece = _slice(out, index, members[0].payload.chunk_bytes)
                total: torch.Tensor | None = None
                for member in members:
                    if member is own:
                        part = piece.clone()
                    else:
                        data = next_chunk()
                        fetched_bytes += len(data)
                        part = torch.frombuffer(data, dtype=torch.float32)
                    total = part if total is None else total.add_(part)
                assert total is not None
                piece.copy_(total.div_(len(members)))
        finally:
            for future in ahead:
                future.cancel()
    return fetched_bytes


def _slice(tensor: torch.Tensor, index: int, chunk_bytes: int) -> torch.Tensor:
    size = chunk_bytes // tensor.element_size()
    return tensor[index * size : (index + 1) * size]
