"""One rank's contribution: encode, put, then say so.

The payload is durable before the contribution that points at it is written, and the claim is
part of the payload's key, so that no process ever writes over what another one's contribution
points at (rules 1 and 2).
"""

from collections.abc import Iterator

import numpy as np

from trainer.rendezvous.base import Base
from trainer.rendezvous.documents import Contribution
from trainer.rendezvous.geometry import Geometry
from trainer.rendezvous.payload import Payload, crc64nvme
from trainer.rendezvous.waiting import Standing
from trainer.rendezvous.wire import Floats, WireFormat


class Contributor:
    """Sends one rank's pseudo-gradients in one wire format.

    A quantised format loses part of each pseudo-gradient; that part is kept, by fragment, and added
    to the fragment's next one (error feedback, arXiv:1901.09847): what is lost in one round arrives
    in a later one. Only what stands in the log counts as sent.
    """

    def __init__(self, standing: Standing, wire: WireFormat) -> None:
        self._standing = standing
        self._wire = wire
        self.unsent: dict[int, Floats] = {}  # fragment: what its pseudo-gradients so far have lost

    def contribute(self, round_index: int, values: Floats, base: Base, geometry: Geometry) -> Contribution:
        """Put `values`, then the contribution that points at them; return the one that stands.

        `values` become what the others will decode. An earlier life of this rank may have contributed
        before it died: then its word counts and ours is never read. Where both are the same bytes, as
        they are after a resume from a checkpoint, what was left unsent is known; else it starts at zero.
        A later life's word means that this process is superseded, and raises so.
        """
        log, rank, claim = self._standing.log, self._standing.rank, self._standing.claim
        key = log.keys.payload(round_index, rank, claim)
        chunk_bytes = self._wire.size_of(geometry.chunk_elements)
        unsent: Floats | None = None
        if self._wire.is_exact:
            payload = Payload.put(log.store, key, values.data.cast("B"), chunk_bytes)
        else:
            unsent = self._with_feedback(base.fragment, values)
            payload = Payload.put_chunks(log.store, key, self._encoded(values, unsent, geometry), chunk_bytes)
        ours = Contribution(
            run_id=log.run_id,
            round=round_index,
            fragment=base.fragment,
            rank=rank,
            claim=claim,
            local_rank=0,
            local_world_size=1,
            dtype=self._wire.name,
            shape=(len(values),),
            layout_hash=base.layout_hash,
            base_hash=base.shared_hash,
            payload=payload,
        )
        standing = log.contribute(ours)
        if standing.claim > claim:
            self._standing.check(round_index)
        self._keep(base.fragment, unsent, _bytes_of(payload) == _bytes_of(standing.payload))
        return standing

    def recall(self, round_index: int, values: Floats, base: Base, geometry: Geometry) -> None:
        """What an earlier life of this rank has left unsent in a round that is committed already.

        Nothing is sent. `values`, what would have been, are worthless afterwards.
        """
        if not self._wire.has_scales:
            return
        unsent = self._with_feedback(base.fragment, values)
        crcs = tuple(crc64nvme(memoryview(data)) for data in self._encoded(values, unsent, geometry))
        entry = self._standing.log.contribution(round_index, self._standing.rank)
        self._keep(base.fragment, unsent, entry is not None and entry[0].payload.chunk_crc64nvme == crcs)

    def _keep(self, fragment: int, unsent: Floats | None, stands: bool) -> None:
        if unsent is not None and stands:
            self.unsent[fragment] = unsent
        else:
            self.unsent.pop(fragment, None)

    def _with_feedback(self, fragment: int, values: Floats) -> Floats | None:
        """Add what earlier rounds have lost; room for what this one will lose, where that is kept."""
        if not self._wire.has_scales:
            return None
        earlier = self.unsent.pop(fragment, None)
        if earlier is None:
            return np.empty_like(values)
        values += earlier
        return earlier

    def _encoded(
        self, values: Floats, unsent: Floats | None, geometry: Geometry
    ) -> Iterator[bytes | memoryview]:
        """Each chunk as it travels; leaves in `values` what it says and in `unsent` the rest."""
        for index in range(geometry.chunks):
            chunk = values[geometry.chunk(index)]
            data = self._wire.encode(chunk)
            said = self._wire.decode(memoryview(data), len(chunk))
            if unsent is not None:
                np.subtract(chunk, said, out=unsent[geometry.chunk(index)])
            chunk[:] = said
            yield data


def _bytes_of(payload: Payload) -> tuple[object, ...]:
    """Equal for payloads of the same bytes, whatever their keys."""
    return payload.size_bytes, payload.chunk_bytes, payload.chunk_crc64nvme
