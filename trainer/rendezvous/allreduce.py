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
from typing import Any, Final

import torch

from trainer.rendezvous.averaging import average_into
from trainer.rendezvous.documents import Contribution, Member, Roster
from trainer.rendezvous.errors import NonFinite, OddOneOut, ReplicasDiverged
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.state_hash import layout_hash, shared_state_hash, tensor_bytes
from trainer.rendezvous.waiting import Clock, ContributionWait, Found, Standing, WaitBounds

FragmentState = Mapping[str, Any]  # torchft's {"original_parameters": ..., "outer_optimizer": ...}
DTYPE: Final = "float32"


@dataclass(frozen=True)
class Base:
    """What a contribution is computed from and must fit: a fragment's layout and its shared state."""

    fragment: int
    numel: int
    layout_hash: str
    shared_hash: str

    @classmethod
    def of(cls, fragment: int, state: FragmentState) -> "Base":
        parameters = state["original_parameters"]
        names = [(name, t.shape, t.dtype) for name, t in parameters.items()]
        numel = sum(t.numel() for t in parameters.values())
        return cls(fragment, numel, layout_hash(names), shared_state_hash(state))

    def check(self, contribution: Contribution, address: str) -> None:
        """Raise ForeignObject where a contribution is of another fragment, layout or size."""
        contribution.check_is(
            address,
            fragment=self.fragment,
            dtype=DTYPE,
            shape=(self.numel,),
            layout_hash=self.layout_hash,
        )
        contribution.payload.check_size(address, 4 * self.numel)


@dataclass
class RoundEvent:
    """What one rank did in one round, and how many seconds each part took. Written when applied."""

    run_id: str
    round: int
    fragment: int
    rank: int
    claim: int
    started_at: str  # of the exchange, UTC, by this machine's clock: for people, never compared
    computed_s: float = 0.0  # inner steps, from the end of the round before to the snapshot
    put_s: float = 0.0  # payload and contribution
    waited_s: float = 0.0
    waited_for: list[int] = field(default_factory=list)  # the ranks that came last
    fetched_s: float = 0.0  # roster, payloads, mean
    applied_s: float = 0.0  # from the snapshot until the mean was handed to the outer step
    sent_bytes: int = 0
    received_bytes: int = 0
    contributed: bool = True  # False where the round was committed before this process came to it

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


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
                done.set_result(self.run(round_index, snapshot, Base.of(fragment, state())))
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits, whatever it is
                done.set_exception(error)

        # A daemon: a process that fails must be able to leave while an exchange is in flight.
        threading.Thread(target=run, name=f"exchange-{round_index}", daemon=True).start()
        return done

    def run(self, round_index: int, snapshot: torch.Tensor, base: Base) -> Mean:
        """The whole round on the calling thread. `snapshot`, flat float32, becomes the mean."""
        began_s = self.clock.now()
        event = self._event(round_index, base.fragment)
        self.standing.check(round_index)
        self._require_finite(round_index, snapshot)
        roster = self.log.roster(round_index)
        if roster is not None:
            # Somebody, perhaps an earlier life of this rank, has brought the round to its end: never
            # contribute below the head of the log, take what was agreed (rule 8).
            event.contributed = False
            event.received_bytes = self.committed_mean(roster, snapshot, base)
            event.fetched_s = self.clock.now() - began_s
            return Mean(snapshot, event)
        ours = self._contribute(event, snapshot, base)
        put_s = self.clock.now()
        found, event.waited_for = self._wait.until_complete(round_index)
        complete_s = self.clock.now()
        for contribution, _ in found.values():
            self._check(contribution, base)
        agreed_hash = self._agreed_base(round_index, found)
        members = tuple(Member(rank, found[rank][0].claim, found[rank][1]) for rank in sorted(found))
        roster = self.log.commit(round_index, agreed_hash, members)
        self._require_base(round_index, base.shared_hash, roster.base_hash)
        event.received_bytes = self._mean_of(roster, snapshot, base, ours)
        event.put_s, event.waited_s = put_s - began_s, complete_s - put_s
        event.fetched_s = self.clock.now() - complete_s
        return Mean(snapshot, event)

    def committed_mean(self, roster: Roster, out: torch.Tensor, base: Base) -> int:
        """Replace `out` by the mean of a round that is committed already; return the bytes fetched.

        Raises OddOneOut where `base` isn't what the round's members started from.
        """
        self._require_base(roster.round, base.shared_hash, roster.base_hash)
        return self._mean_of(roster, out, base, None)

    def _contribute(self, event: RoundEvent, snapshot: torch.Tensor, base: Base) -> Contribution:
        """Put the payload, then the contribution that points at it; return the one that stands."""
        round_index, rank, claim = event.round, event.rank, event.claim
        key = self.log.keys.payload(round_index, rank, claim)
        payload = Payload.put(self.log.store, key, tensor_bytes(snapshot))
        event.sent_bytes = payload.size_bytes
        ours = Contribution(
            run_id=self.log.run_id,
            round=round_index,
            fragment=base.fragment,
            rank=rank,
            claim=claim,
            local_rank=0,
            local_world_size=1,
            dtype=DTYPE,
            shape=tuple(snapshot.shape),
            layout_hash=base.layout_hash,
            base_hash=base.shared_hash,
            payload=payload,
        )
        standing = self.log.contribute(ours)
        # An earlier life of this rank may have contributed before it died: then its word counts, and
        # ours is never read. A later life's word means that we are superseded.
        if standing.claim > claim:
            self.standing.check(round_index)
        return standing

    def _mean_of(self, roster: Roster, out: torch.Tensor, base: Base, ours: Contribution | None) -> int:
        members = self.log.members_of(roster)
        for member in members:
            self._check(member, base)
        # `out` is our member's payload only if that was put under our own claim.
        own = next((m for m in members if m == ours and m.claim == self.standing.claim), None)
        return average_into(out, members, self.log.store, own=own)

    def _check(self, contribution: Contribution, base: Base) -> None:
        key = self.log.keys.contribution(contribution.round, contribution.rank)
        base.check(contribution, self.log.store.address(key))

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
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
