"""Average one fragment's pseudo-gradient across replicas through the run bucket.

A round, as one rank sees it:

    payload -> contribution -> wait for all -> agree on the base -> roster -> mean

The payload is durable before the contribution that points at it is written, the roster is
written before anybody applies a mean, and everything but payloads is created once and never
changed, so a process killed between any two steps leaves a log that still tells one story. No
leader is needed: small rounds every rank averages by itself (averaging.py), large ones in slices
(sharded.py), with the same bits. The averaging in DiLoCo's Algorithm 1 (arXiv:2311.08105).

All of it runs on a background thread: `start` returns at once (rule 13).
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import torch

from trainer.rendezvous.averaging import Averaging, average_whole
from trainer.rendezvous.base import Base, FragmentState
from trainer.rendezvous.contributing import Contributor
from trainer.rendezvous.documents import Contribution, Member, Roster
from trainer.rendezvous.errors import NonFinite, OddOneOut, ReplicasDiverged
from trainer.rendezvous.geometry import Geometry, is_sharded
from trainer.rendezvous.host_copy import HostCopy
from trainer.rendezvous.round_event import RoundEvent
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.sharded import ShardedMean
from trainer.rendezvous.waiting import Clock, ContributionWait, Found, Standing, WaitBounds
from trainer.rendezvous.wire import FORMATS, Floats


@dataclass(frozen=True)
class Mean:
    """The mean of one round, flat float32 on the CPU, and how it was come by."""

    values: Floats
    event: RoundEvent


class ObjectStoreAllReduce:
    """One process's end of the all-reduce, speaking for `standing.rank` under its claim.

    `wire_dtype` is the format of contributions, `mean_dtype` that of means; the same on all ranks.
    """

    def __init__(
        self,
        standing: Standing,
        world_size: int,
        bounds: WaitBounds,
        *,
        wire_dtype: str = "fp32",
        mean_dtype: str = "fp32",
        clock: Clock | None = None,
    ) -> None:
        self.standing = standing
        self.log: RunLog = standing.log
        self.world_size = world_size
        self.clock = clock or Clock()
        self._wire, self._mean_wire = FORMATS[wire_dtype], FORMATS[mean_dtype]
        self._contributor = Contributor(standing, self._wire)
        self._wait = ContributionWait(standing, world_size, bounds, self.clock)

    @property
    def unsent(self) -> dict[int, Floats]:
        """By fragment, what quantising has kept back of this rank's pseudo-gradients so far."""
        return self._contributor.unsent

    def start(
        self, round_index: int, fragment: int, tensor: torch.Tensor, state: Callable[[], FragmentState]
    ) -> Future[Mean]:
        """Begin the round and return at once; the future holds its mean or its error.

        `tensor` is this rank's pseudo-gradient. As with torch.distributed's async_op, it belongs to
        the exchange until the future is done: on the CPU it is worked on in place, without a copy.
        `state` gives the fragment's shared state, which must not change until then either.
        """
        copy = HostCopy(tensor)
        done: Future[Mean] = Future()

        def run() -> None:
            try:
                done.set_result(self.run(round_index, copy.values(), Base.of(fragment, state())))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits, whatever it is
                done.set_exception(error)

        # A daemon: a process that fails must be able to leave while an exchange is in flight.
        threading.Thread(target=run, name=f"exchange-{round_index}", daemon=True).start()
        return done

    def run(self, round_index: int, values: Floats, base: Base) -> Mean:
        """The whole round on the calling thread. `values`, flat float32, become the mean."""
        began_s = self.clock.now()
        event = self._event(round_index, base.fragment)
        self.standing.check(round_index)
        self._require_finite(round_index, values)
        roster = self.log.roster(round_index)
        if roster is not None:
            # Somebody, perhaps an earlier life of this rank, has brought the round to its end: never
            # contribute below the head of the log, take what was agreed (rule 8).
            event.contributed = False
            self._contributor.recall(round_index, values, base, Geometry.of(base.numel, self.world_size))
            event.received_bytes = self.committed_mean(roster, values, base)
            event.fetched_s = self.clock.now() - began_s
            return Mean(values, event)
        geometry = Geometry.of(base.numel, self.world_size)
        ours = self._contributor.contribute(round_index, values, base, geometry)
        event.sent_bytes = ours.payload.size_bytes
        put_s = self.clock.now()
        found, event.waited_for = self._wait.until_complete(round_index)
        complete_s = self.clock.now()
        roster = self._commit(round_index, found, base, geometry)
        self._require_base(round_index, base.shared_hash, roster.base_hash)
        self._average(roster, values, base, geometry, ours, event)
        event.put_s, event.waited_s = put_s - began_s, complete_s - put_s
        event.fetched_s = self.clock.now() - complete_s
        return Mean(values, event)

    def committed_mean(self, roster: Roster, out: Floats, base: Base) -> int:
        """Replace `out` by the mean of a round that is committed already; return the bytes fetched.

        From the members' payloads, which outlive the run, whatever became of its slices: the bits are
        the same. Raises OddOneOut where `base` isn't what the round's members started from.
        """
        self._require_base(roster.round, base.shared_hash, roster.base_hash)
        geometry = Geometry.of(base.numel, len(roster.members))
        return average_whole(self._averaging(roster, base, geometry, None), out, self.log.store)

    def _commit(self, round_index: int, found: Found, base: Base, geometry: Geometry) -> Roster:
        """Check what all have given, and write the round's roster; the one that stands."""
        for contribution, _ in found.values():
            self._check(contribution, base, geometry)
        members = tuple(Member(rank, found[rank][0].claim, found[rank][1]) for rank in sorted(found))
        sharded = is_sharded(base.numel, self.world_size)
        return self.log.commit(
            Roster(
                run_id=self.log.run_id,
                round=round_index,
                base_hash=self._agreed_base(round_index, found),
                members=members,
                mean_dtype=self._mean_wire.name,
                slice_owners=tuple(member.rank for member in members[: geometry.slices]) if sharded else (),
            )
        )

    def _average(
        self,
        roster: Roster,
        values: Floats,
        base: Base,
        geometry: Geometry,
        ours: Contribution,
        event: RoundEvent,
    ) -> None:
        # What we hold is our member's payload only if it was put under our own claim.
        own = ours if ours.claim == self.standing.claim else None
        averaging = self._averaging(roster, base, geometry, own)
        if roster.slice_owners:
            sharded = ShardedMean(self.standing, self.clock, roster, averaging, values)
            sharded.run()
            event.sent_bytes += sharded.sent_bytes
            event.received_bytes = sharded.received_bytes
        else:
            event.received_bytes = average_whole(averaging, values, self.log.store)

    def _averaging(
        self, roster: Roster, base: Base, geometry: Geometry, own: Contribution | None
    ) -> Averaging:
        members = self.log.members_of(roster)
        for member in members:
            self._check(member, base, geometry)
        held = next((member for member in members if member == own), None)
        return Averaging(members, geometry, self._wire, FORMATS[roster.mean_dtype], held)

    def _check(self, contribution: Contribution, base: Base, geometry: Geometry) -> None:
        key = self.log.keys.contribution(contribution.round, contribution.rank)
        base.check(contribution, geometry, self._wire, self.log.store.address(key))

    def _agreed_base(self, round_index: int, found: Found) -> str:
        """The base hash of most ranks (rule 9). Without a majority the run is given up."""
        by_rank = {rank: entry[0].base_hash for rank, entry in sorted(found.items())}
        base_hash, count = Counter(by_rank.values()).most_common(1)[0]
        if 2 * count > len(by_rank):
            return base_hash
        shown = ", ".join(f"rank {rank} {value[:12]}" for rank, value in by_rank.items())
        reason = f"round {round_index}: the replicas' shared weights differ and none has a majority: {shown}"
        self.log.abort(by=f"rank {self.standing.rank}", reason=reason, round_index=round_index, missing=[])
        raise ReplicasDiverged(f"rank {self.standing.rank} {reason}. Start a new run.")

    def _require_base(self, round_index: int, ours: str, agreed: str) -> None:
        if ours != agreed:
            raise OddOneOut(
                f"rank {self.standing.rank} round {round_index}: this replica's shared weights "
                f"({ours[:12]}) differ from the majority's ({agreed[:12]}); it leaves so that a relaunch can "
                "catch up from the log. Look at this machine's memory if it happens again."
            )

    def _require_finite(self, round_index: int, values: Floats) -> None:
        if not np.isfinite(values).all():
            raise NonFinite(
                f"rank {self.standing.rank} round {round_index}: the pseudo-gradient holds NaN or infinity; "
                "it was not sent. Lower lr or max_grad_norm, or look at the data of this rank."
            )

    def _event(self, round_index: int, fragment: int) -> RoundEvent:
        return RoundEvent(
            run_id=self.log.run_id,
            round=round_index,
            fragment=fragment,
            rank=self.standing.rank,
            claim=self.standing.claim,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
