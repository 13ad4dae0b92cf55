"""The mean of a roster's contributions: the same bits on every rank (rule 5).

Sums run in rank order, in float32, and divide once at the end; each operation rounds once, and
numpy fuses none, so no order of arrival, thread or processor changes a bit. The mean then takes
the rounding of its own wire format, wherever it was computed: decode(encode(sum / members)).

Works chunk by chunk, so an exchange holds a few chunks above the tensor (rule 15). Chunks are
fetched ahead on threads of their own while the one at hand is summed.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from trainer.rendezvous.agreement import Agreement
from trainer.rendezvous.documents import Contribution
from trainer.rendezvous.geometry import Geometry
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.wire import Floats, WireFormat

STREAMS: Final = 8  # chunks in flight; S3 gives some 85 to 90 MB/s a connection


@dataclass
class Fetcher:
    """Reads chunks ahead of their use, in the order in which they will be used."""

    store: ObjectStore
    received_bytes: int = 0
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(STREAMS, "fetch"))

    def __enter__(self) -> "Fetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def chunks(self, reads: Iterable[tuple[Payload, int, str]]) -> Iterator[memoryview]:
        """Verified chunks of (payload, chunk index, where to say an error was)."""
        waiting = iter(reads)
        ahead: deque[Future[memoryview]] = deque()
        while True:
            while len(ahead) < STREAMS and (read := next(waiting, None)) is not None:
                payload, index, where = read
                ahead.append(self._pool.submit(payload.fetch_chunk, self.store, index, where))
            if not ahead:
                return
            data = ahead.popleft().result()
            self.received_bytes += len(data)
            yield data


@dataclass(frozen=True)
class Averaging:
    """How one round's mean is made of its members' contributions.

    `own` is the member whose values this process still holds, as everybody else will decode them.
    """

    members: Sequence[Contribution]
    geometry: Geometry
    wire: WireFormat
    mean_wire: WireFormat
    own: Contribution | None

    def mean_chunks(self, fetcher: Fetcher, chunks: Sequence[int], held: Floats) -> Iterator[Floats]:
        """The mean of each chunk in turn; `held` are this process's own values, if `own` is a member.

        A chunk of `held` may be overwritten as soon as its mean has been given out.
        """
        reads = (
            (member.payload, index, f"round {member.round} rank {member.rank}")
            for index in chunks
            for member in self.members
            if member is not self.own
        )
        arriving = fetcher.chunks(reads)
        divisor = np.float32(len(self.members))
        for index in chunks:
            total: Floats | None = None
            for member in self.members:
                if member is self.own:
                    part = held[self.geometry.chunk(index)]
                else:
                    part = self.wire.decode(next(arriving), self.geometry.count(index))
                if total is None:
                    total = part.copy()
                else:
                    total += part
            assert total is not None
            total /= divisor
            yield total

    def as_sent(self, mean: Floats) -> Floats:
        """The bits of a chunk's mean as everybody has them: rounded as its wire format rounds."""
        if self.mean_wire.is_exact:
            return mean
        return self.mean_wire.decode(memoryview(self.mean_wire.encode(mean)), len(mean))


def average_whole(
    averaging: Averaging, out: Floats, store: ObjectStore, agreement: Agreement | None = None
) -> int:
    """Replace `out` by the mean, every rank for itself; return the bytes fetched.

    `agreement` counts what was in `out` before, where that was this rank's pseudo-gradient.

    Raises DamagedObject or AbsentObject, naming rank, round and key; `out` is then worthless.
    """
    chunks = range(averaging.geometry.chunks)
    with Fetcher(store) as fetcher:
        for index, mean in zip(chunks, averaging.mean_chunks(fetcher, chunks, out), strict=True):
            sent, chunk = averaging.as_sent(mean), out[averaging.geometry.chunk(index)]
            if agreement is not None:
                agreement.add(chunk, sent)
            chunk[:] = sent
        return fetcher.received_bytes
