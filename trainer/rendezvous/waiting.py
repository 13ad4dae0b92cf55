"""Waiting for peers, never for ever (rules 11 and 14).

A peer is waited for as long as it shows life: a wait for rank R ends `timeout_s` after R's
progress object last changed as seen from here, and in any case after `round_timeout_s`. In the
first round `startup_timeout_s` takes the place of the former, since SageMaker may still be
finding an instance; so it does for a rank whose last word is that it is on its way back. Whoever
times out gives the whole run up, so that the others leave within
a few polls instead of each sitting out its own clock.

Clocks are this process's own monotonic one: the replicas' wall clocks may be hours apart.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from trainer.rendezvous.errors import PeerLost, Stopped, Superseded
from trainer.rendezvous.run_log import Contributions, RunLog

LIST_ABOVE: Final = 12  # a LIST costs 12.5 GETs (S3 request prices), so look one by one up to here
SLOWEST_POLL: Final = 5  # times the first pause
PROGRESS_EVERY_S: Final = 30.0  # how often a waiter looks for signs of life, at least
# States of a rank that is on its way back: its launcher says so, or a spot instance was taken from it.
RETURNING: Final = ("relaunching", "stopped")


@dataclass(frozen=True)
class WaitBounds:
    """How long to wait for peers; RunSpec's fields of the same names say why."""

    timeout_s: float
    startup_timeout_s: float
    round_timeout_s: float
    poll_interval_s: float

    def standstill_s(self, round_index: int) -> float:
        return self.startup_timeout_s if round_index == 0 else self.timeout_s


@dataclass
class Clock:
    """Time as a wait sees it; tests put their own hands on it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: random.Random = field(default_factory=random.Random)


@dataclass(frozen=True)
class Standing:
    """Who is waiting: one process's claim on a rank, and its wish to stop."""

    log: RunLog
    rank: int
    claim: int
    stop: threading.Event

    def check(self, round_index: int) -> None:
        """Raise where this process should not go on: asked to stop, run given up, or superseded."""
        self.check_stop()
        reason, superseded = self.log.abort_and_successor(self.rank, self.claim)
        self._check_abort(reason, round_index)
        if superseded:
            raise Superseded(
                f"rank {self.rank} round {round_index}: process {self.claim} of this rank has been followed "
                f"by process {self.claim + 1}; this one leaves"
            )

    def check_quick(self, round_index: int) -> None:
        """The part of `check` that is worth a request at each poll."""
        self.check_stop()
        self._check_abort(self.log.abort_reason(), round_index)

    def _check_abort(self, reason: str | None, round_index: int) -> None:
        if reason is not None:
            raise PeerLost(f"rank {self.rank} round {round_index}: the run was given up by {reason}")

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped(f"rank {self.rank}: asked to stop, and did")


class ContributionWait:
    """One rank's waits for the contributions of all ranks to a round."""

    def __init__(self, standing: Standing, world_size: int, bounds: WaitBounds, clock: Clock) -> None:
        self._standing = standing
        self._log = standing.log
        self._world_size = world_size
        self._bounds = bounds
        self._clock = clock

    def until_complete(self, round_index: int) -> tuple[Contributions, list[int]]:
        """All contributions by rank, and the ranks that were missing at the last look but one.

        Raises PeerLost once a missing peer has stood still for too long, naming rank and round;
        the run's abort marker is then written. Raises as Standing.check does, too.
        """
        found: Contributions = {}
        came_last: list[int] = []
        life = _SignsOfLife(self._log, self._clock, self._bounds, round_index)
        started_s = self._clock.now()
        pause_s = self._bounds.poll_interval_s
        while missing := self._look(round_index, found):
            came_last = missing
            if life.look_is_due():
                self._standing.check(round_index)
                life.look(missing)
            else:
                self._standing.check_quick(round_index)
            if lost := [rank for rank in missing if life.remaining_s(rank) <= 0]:
                stood_s = min(map(life.bound_s, lost))
                self._give_up(round_index, missing, f"ranks {lost} stood still for {stood_s:g} s")
            left_s = self._bounds.round_timeout_s - (self._clock.now() - started_s)
            if left_s <= 0:
                self._give_up(round_index, missing, f"waited {self._bounds.round_timeout_s:g} s in all")
            # A pause never reaches past the next bound, so that no bound is kept late.
            left_s = min(left_s, *(life.remaining_s(rank) for rank in missing))
            self._clock.sleep(min(pause_s * self._clock.jitter.uniform(0.7, 1.0), left_s))
            pause_s = min(1.3 * pause_s, SLOWEST_POLL * self._bounds.poll_interval_s)
        return found, came_last

    def _look(self, round_index: int, found: Contributions) -> list[int]:
        """Add what has arrived to `found`; return the ranks still missing."""
        missing = [rank for rank in range(self._world_size) if rank not in found]
        listed = missing
        if len(missing) > LIST_ABOVE:
            names = set(self._log.store.names(self._log.keys.round_prefix(round_index)))
            listed = [rank for rank in missing if f"rank_{rank:04d}.json" in names]
        found |= self._log.contributions(round_index, listed)
        return [rank for rank in missing if rank not in found]

    def _give_up(self, round_index: int, missing: list[int], why: str) -> None:
        me = self._standing.rank
        reason = f"round {round_index}: no contribution from ranks {missing}: {why}"
        self._log.abort(by=f"rank {me}", reason=reason, round_index=round_index, missing=missing)
        where = self._log.store.address(self._log.keys.round_prefix(round_index))
        raise PeerLost(
            f"rank {me} {reason} (looked under {where}). See how those replicas ended, then start a new run."
        )


class _SignsOfLife:
    """When each peer's progress object last changed, by our clock."""

    def __init__(self, log: RunLog, clock: Clock, bounds: WaitBounds, round_index: int) -> None:
        self._standstill_s = bounds.standstill_s(round_index)
        self._return_s = max(self._standstill_s, bounds.startup_timeout_s)
        self._log = log
        self._clock = clock
        self._every_s = min(PROGRESS_EVERY_S, self._standstill_s / 10)
        self._start_s = clock.now()
        self._looked_s: float | None = None
        self._seen: dict[int, tuple[bytes | None, float]] = {}  # rank: its progress, and since when

    def look_is_due(self) -> bool:
        return self._looked_s is None or self._clock.now() - self._looked_s >= self._every_s

    def look(self, ranks: list[int]) -> None:
        self._looked_s = self._clock.now()
        progresses = self._log.store.find_all([self._log.keys.progress(rank) for rank in ranks])
        for rank, progress in zip(ranks, progresses, strict=True):
            if rank not in self._seen:
                self._seen[rank] = (progress, self._start_s)
            elif self._seen[rank][0] != progress:
                self._seen[rank] = (progress, self._looked_s)

    def remaining_s(self, rank: int) -> float:
        """Seconds until the peer counts as lost."""
        since_s = self._seen[rank][1] if rank in self._seen else self._start_s
        return since_s + self.bound_s(rank) - self._clock.now()

    def bound_s(self, rank: int) -> float:
        """How long the peer may stand still; an instance may have to be found for one that returns."""
        progress = self._seen[rank][0] if rank in self._seen else None
        return self._return_s if progress is not None and _is_returning(progress) else self._standstill_s


def _is_returning(progress: bytes) -> bool:
    """Whether a rank's last word is that it is on its way back; what can't be read says nothing."""
    try:
        said = json.loads(progress)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("state") in RETURNING
