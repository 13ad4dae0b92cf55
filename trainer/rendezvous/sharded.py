"""The mean in slices: each rank averages one slice for everybody (rule 12).

A rank then fetches about 2 (N - 1) / N of the tensor, however many ranks there are, where
averaging the whole takes N - 1 tensors down. Slice s belongs to the roster's owner s; it is
computed from everybody's chunks, put once, and announced by a document that carries the roster's
digest. All slices are in the log before anybody applies the mean (rule 6).

An owner may be slow or dead: whoever waits computes the slice itself in the end, the next rank
first. Sums in rank order over whole blocks have the same bits whoever makes them, so it does not
matter who comes first, and no wait here outlasts the taking over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trainer.rendezvous.agreement import Agreement
from trainer.rendezvous.averaging import Averaging, Fetcher
from trainer.rendezvous.base import payload_size
from trainer.rendezvous.documents import MeanSlice, Roster
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.waiting import Clock, Standing
from trainer.rendezvous.wire import Floats

TAKE_OVER_S: Final = 15.0  # the i-th rank after a late slice's owner takes it over after i times this
POLL_S: Final = 0.05  # slices come within the time that an exchange takes anyway
SLOWEST_POLL_S: Final = 1.0


@dataclass
class ShardedMean:
    """One rank's part in averaging one round.

    `out` holds this rank's own values, as others decode them, and becomes the mean slice by slice;
    a slice's own values are needed for computing that slice alone.
    """

    standing: Standing
    clock: Clock
    roster: Roster
    averaging: Averaging
    out: Floats
    sent_bytes: int = 0
    received_bytes: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    _missing: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Fill `out` with the mean. Raises as Standing.check does, and what the store raises."""
        owners = self.roster.slice_owners
        self._missing = set(range(len(owners)))
        with Fetcher(self.standing.log.store) as fetcher:
            for index in [i for i, owner in enumerate(owners) if owner == self.standing.rank]:
                self._compute(fetcher, index)
            started_s, pause_s = self.clock.now(), POLL_S
            while self._missing:
                if not self._fetch_announced(fetcher):
                    self._take_over(fetcher, self.clock.now() - started_s)
                if self._missing:
                    self.standing.check_quick(self.roster.round)
                    self.clock.sleep(pause_s)
                    pause_s = min(1.5 * pause_s, SLOWEST_POLL_S)
            self.received_bytes = fetcher.received_bytes

    def _fetch_announced(self, fetcher: Fetcher) -> bool:
        """Fetch the slices that have been announced into `out`; whether there were any."""
        log, geometry = self.standing.log, self.averaging.geometry
        announced = log.mean_slices(self.roster, sorted(self._missing)).items()
        order = [
            (index, chunk, standing) for index, standing in announced for chunk in geometry.chunks_of(index)
        ]
        reads = (
            (
                standing.payload,
                chunk - geometry.chunks_of(index).start,
                f"round {standing.round} slice {index} by rank {standing.rank}",
            )
            for index, chunk, standing in order
        )
        for _, standing in announced:
            self._check(standing)
        for (_, chunk, _), data in zip(order, fetcher.chunks(reads), strict=True):
            self._replace(chunk, self.averaging.mean_wire.decode(data, geometry.count(chunk)))
        self._missing -= {index for index, _ in announced}
        return bool(announced)

    def _take_over(self, fetcher: Fetcher, waited_s: float) -> None:
        """Compute one late slice whose turn it is to be computed here."""
        ranks = [member.rank for member in self.roster.members]
        for index in sorted(self._missing):
            owner = ranks.index(self.roster.slice_owners[index])
            turn = (ranks.index(self.standing.rank) - owner) % len(ranks)
            if waited_s >= turn * TAKE_OVER_S:
                self._compute(fetcher, index)
                return

    def _compute(self, fetcher: Fetcher, index: int) -> None:
        """Compute a slice into `out`, put and announce it. Whoever announces it first: same bits."""
        log, geometry, wire = self.standing.log, self.averaging.geometry, self.averaging.mean_wire
        chunks = geometry.chunks_of(index)

        def encoded() -> Iterator[bytes | memoryview]:
            means = self.averaging.mean_chunks(fetcher, chunks, self.out)
            for chunk, mean in zip(chunks, means, strict=True):
                data = wire.encode(mean)
                self._replace(chunk, wire.decode(memoryview(data), len(mean)))
                yield data

        rank, claim = self.standing.rank, self.standing.claim
        key = log.keys.mean_payload(self.roster.round, index, rank, claim)
        chunk_bytes = wire.size_of(geometry.chunk_elements)
        payload = Payload.put_chunks(log.store, key, encoded(), chunk_bytes, len(chunks))
        self.sent_bytes += payload.size_bytes
        log.announce_slice(
            MeanSlice(
                run_id=log.run_id,
                round=self.roster.round,
                slice=index,
                rank=rank,
                claim=claim,
                roster_sha256=self.roster.digest,
                dtype=wire.name,
                payload=payload,
            )
        )
        self._missing.discard(index)

    def _replace(self, chunk: int, mean: Floats) -> None:
        own = self.out[self.averaging.geometry.chunk(chunk)]
        self.agreement.add(own, mean)
        own[:] = mean

    def _check(self, announced: MeanSlice) -> None:
        """Raise ForeignObject where a slice, which is this roster's, isn't of its size and format."""
        log, geometry, wire = self.standing.log, self.averaging.geometry, self.averaging.mean_wire
        address = log.store.address(log.keys.mean(self.roster.round, announced.slice))
        announced.check_is(address, dtype=wire.name)
        chunks = geometry.chunks_of(announced.slice)
        announced.payload.check_size(address, *payload_size(geometry, wire, chunks))
