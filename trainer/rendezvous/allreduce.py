"""Average one fragment's pseudo-gradient across replicas through the run bucket.

A round, as one rank sees it:

    snapshot -> payload -> contribution -> wait for all -> agree on the base -> roster -> mean

The payload is durable before the contribution that points at it is written, the roster is
written before anybody applies a mean, and everything but payloads is created once and never
changed, so a process killed between any two steps leaves a log that still tells one story.
Each rank averages the whole tensor by itself: the members' payloads are the publication of
the mean, and no leader is needed. The averaging in DiLoCo's Algorithm 1 (arXiv:2311.08105).

All of it runs on a background thread: `start` takes a snapshot and returns (rule 13).
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from trainer.rendezvous.averaging import average_into
from trainer.rendezvous.documents import Contribution, Member, Roster
from trainer.rendezvous.errors import NonFinite, OddOneOut, ReplicasDiverged
from trainer.rendezvous.payload import CHUNK_BYTES, Payload
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.state_hash import layout_hash, shared_state_hash, tensor_bytes
from trainer.rendezvous.waiting import Clock, ContributionWait, Found, Standing, WaitBounds

FragmentState = Mapping[str, Any]  # torchft's {"original_parameters": ..., "outer_optimizer": ...}


@dataclass
class RoundEvent:
    """What one rank did in one round; seconds since its snapshot. Written to the log when applied."""

    run_id: str
    round: int
    fragment: int
    rank: int
    claim: int
    started_at: str  # UTC, this machine's clock: for people, never compared
    put_s: float = 0.0
    waited_s: float = 0.0
    waited_for: list[int] = field(default_factory=list)
    fetched_s: float = 0.0
    applied_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    contributed: bool = True  # False where the round was committed before this process came to it

    began_s: float = 0.0  # this process's own clock; means nothing elsewhere and is not written

    def encode(self) -> bytes:
        document = asdict(self)
        del document["began_s"]
        return json.dumps(document, sort_keys=True).encode()


@dataclass(frozen=True)
class Mean:
    """The mean of one round, flat float32 on the CPU, and how it was come by."""

    tensor: torch.Tensor
    event: RoundEvent


class ObjectStoreAllReduce:
    """One process's end of the all-reduce, speaking for `standing.rank` under its claim."""

    def __init__(
        self, standing: Standing, world_size: int, bounds: WaitBounds, clock: Clock | None = None
    ) -> None:
        self.standing = standing
        self.log: RunLog = standing.log
        self.world_size = world_size
        self.clock = clock or Clock()
        self._wait = ContributionWait(standing, world_size, bounds, self.clock)

    def start(
        self, round_index: int, fragment: int, tensor: torch.Tensor, state: Callable[[], FragmentState]
    ) -> Future[Mean]:
        """Begin the round and return at once; the future holds its mean or its error.

        `tensor` is this rank's pseudo-gradient; it is copied before this returns and not touched.
        `state` gives the fragment's shared state, which must not change until the future is done.
        """
        snapshot = tensor.detach().to("cpu", torch.float32, copy=True).reshape(-1)
        done: Future[Mean] = Future()

        def run() -> None:
            try:
                done.set_result(self.run(round_index, fragment, snapshot, state()))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits, whatever it is
                done.set_exception(error)

        # A daemon: a process that fails must be able to leave while an exchange is in flight.
        threading.Thread(target=run, name=f"exchange-{round_index}", daemon=True).start()
        return done

    def run(self, round_index: int, fragment: int, snapshot: torch.Tensor, state: FragmentState) -> Mean:
        """The whole round on the calling thread. `snapshot` becomes the mean."""
        event = self._event(round_index, fragment)
        self.standing.check(round_index)
        self._require_finite(round_index, snapshot)
        base_hash = shared_state_hash(state)
        roster = self.log.roster(round_index)
        if roster is not None:
            # Somebody, perhaps an earlier life of this rank, has brought the round to its end: never
            # contribute below the head of the log, take what was agreed (rule 8).
            event.contributed = False
            self._require_base(round_index, base_hash, roster.base_hash)
            mean = self.committed_mean(roster, like=snapshot, event=event)
            event.fetched_s = self.clock.now() - event.began_s
            return mean
        ours = self._contribute(event, snapshot, state, base_hash)
        event.put_s = self.clock.now() - event.began_s
        found, event.waited_for = self._wait.until_complete(round_index)
        event.waited_s = self.clock.now() - event.began_s - event.put_s
        for rank, (theirs, _) in found.items():
            address = self.log.store.address(self.log.keys.contribution(round_index, rank))
            theirs.check_is(
                address, fragment=fragment, dtype=ours.dtype, shape=ours.shape, layout_hash=ours.layout_hash
            )
        agreed_hash = self._agreed_base(round_index, found)
        members = tuple(Member(rank, found[rank][0].claim, found[rank][1]) for rank in sorted(found))
        roster = self.log.commit(round_index, agreed_hash, members)
        self._require_base(round_index, base_hash, agreed_hash)
        mean = self._mean(roster, snapshot, ours, event)
        event.fetched_s = self.clock.now() - event.began_s - event.put_s - event.waited_s
        return mean

    def committed_mean(self, roster: Roster, *, like: torch.Tensor, event: RoundEvent | None = None) -> Mean:
        """The mean of a committed round, for a replica that catches up. Overwrites `like`."""
        event = event or self._event(roster.round, -1)
        return self._mean(roster, like, None, event)

    def _contribute(
        self, event: RoundEvent, snapshot: torch.Tensor, state: FragmentState, base_hash: str
    ) -> Contribution:
        """Put the payload, then the contribution that points at it; return the one that stands."""
        round_index, rank, claim = event.round, event.rank, event.claim
        payload = Payload.put(
            self.log.store,
            self.log.keys.payload(round_index, rank, claim),
            tensor_bytes(snapshot),
            CHUNK_BYTES,
        )
        event.sent_bytes = payload.size_bytes
        names = [(name, t.shape, t.dtype) for name, t in state["original_parameters"].items()]
        ours = Contribution(
            run_id=self.log.run_id,
            round=round_index,
            fragment=event.fragment,
            rank=rank,
            claim=claim,
            local_rank=0,
            local_world_size=1,
            dtype="float32",
            shape=tuple(snapshot.shape),
            layout_hash=layout_hash(names),
            base_hash=base_hash,
            payload=payload,
        )
        key = self.log.keys.contribution(round_index, rank)
        standing = self.log.checked_contribution(self.log.store.create(key, ours.encode()), round_index, rank)
        # An earlier life of this rank may have contributed before it died: then its word counts, and
        # ours is never read. A later life's word means that we are superseded.
        if standing.claim > claim:
            self.standing.check(round_index)
        return standing

    def _mean(self, roster: Roster, out: torch.Tensor, ours: Contribution | None, event: RoundEvent) -> Mean:
        members = self.log.members_of(roster)
        for member in members:
            member.check_is(
                self.log.store.address(self.log.keys.contribution(roster.round, member.rank)),
                shape=tuple(out.shape),
                dtype="float32",
            )
        # What we hold in memory is our member's payload only if it was put under our own claim.
        own = next((m for m in members if m == ours and m.claim == self.standing.claim), None)
        event.received_bytes = average_into(out, members, self.log.store, own=own)
        return Mean(out, event)

    def _agreed_base(self, round_index: int, found: Found) -> str:
        """The base hash of most ranks (rule 9). Without a majority the run is given up."""
        by_rank = {rank: entry[0].base_hash for rank, entry in sorted(found.items())}
        base_hash, count = Counter(by_rank.values()).most_common(1)[0]
        if 2 * count > len(by_rank):
            return base_hash
        shown = ", ".join(f"rank {rank} {value[:12]}" for rank, value in by_rank.items())
        reason = f"round {round_index}: the replicas' shared weights differ and none has a majority: {shown}"
        self.log.abort(by=f"rank {self.standing.rank}", reason=reason, round_index=round_index, missing=[])
        raise ReplicasDiverged(
            f"rank {self.standing.rank} {reason}. Start a new run from the last good model."
        )

    def _require_base(self, round_index: int, ours: str, agreed: str) -> None:
        if ours != agreed:
            raise OddOneOut(
                f"rank {self.standing.rank} round {round_index}: this replica's shared weights "
                f"({ours[:12]}) differ from the majority's ({agreed[:12]}); it leaves so that a relaunch can "
                "catch up from the log. Look at this machine's memory if it happens again."
            )

    def _require_finite(self, round_index: int, snapshot: torch.Tensor) -> None:
        if not bool(torch.isfinite(snapshot).all()):
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
            began_s=self.clock.now(),
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
