"""Where a flat tensor is cut: into chunks that travel, are checked and summed one by one, and into
slices of whole chunks that one rank each averages for everybody (rule 12).

A function of the tensor's size and the number of ranks alone, so that all ranks cut alike. Every
cut is a multiple of a wire format's block: the bits of a mean don't depend on where it was cut.
"""

from dataclasses import dataclass
from typing import Final, Self

from trainer.rendezvous.wire import BLOCK

CHUNK_ELEMENTS: Final = 2**22  # 16 MiB of float32
# Slices spare a rank most of what it would fetch, and cost one more phase of round trips. With S3's
# latency they win from some 64 MiB spared a rank (benchmarks/sharding.py): 12 MiB of tensor for eight ranks.
SHARD_FROM_ELEMENTS: Final = 2**24
SHARD_FROM_RANKS: Final = 3  # two ranks exchange the same bytes either way


@dataclass(frozen=True)
class Geometry:
    """`numel` values in chunks of `chunk_elements`, `chunks_per_slice` of them a slice."""

    numel: int
    chunk_elements: int
    chunks_per_slice: int

    @classmethod
    def of(cls, numel: int, ranks: int) -> Self:
        slice_elements = -(-numel // ranks)
        chunks_per_slice = max(1, -(-slice_elements // CHUNK_ELEMENTS))
        chunk_elements = -(-slice_elements // (chunks_per_slice * BLOCK)) * BLOCK
        return cls(numel, max(chunk_elements, BLOCK), chunks_per_slice)

    @property
    def chunks(self) -> int:
        return -(-self.numel // self.chunk_elements)

    @property
    def slices(self) -> int:
        """At most one a rank; fewer where the tensor is so small that some would be empty."""
        return -(-self.chunks // self.chunks_per_slice)

    def chunk(self, index: int) -> slice:
        """The values of a chunk."""
        start = index * self.chunk_elements
        return slice(start, min(start + self.chunk_elements, self.numel))

    def count(self, index: int) -> int:
        span = self.chunk(index)
        return int(span.stop - span.start)

    def chunks_of(self, slice_index: int) -> range:
        """The chunks of a slice."""
        start = slice_index * self.chunks_per_slice
        return range(start, min(start + self.chunks_per_slice, self.chunks))


def is_sharded(numel: int, ranks: int) -> bool:
    """Whether a round of this size is averaged in slices: where that spares each rank enough."""
    spared = (ranks - 1) * numel - 2 * (ranks - 1) * numel // ranks
    return ranks >= SHARD_FROM_RANKS and spared >= SHARD_FROM_ELEMENTS
