"""Whether a schedule ended as it must."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.chaos.disturbances import FIRED
from tests.chaos.schedule import AGREE, EQUAL, Schedule
from tests.chaos.server import Found
from trainer.layout import RunLayout


@dataclass
class Life:
    """One process of a rank, and how it ended."""

    rank: int
    number: int
    process: int
    base: str
    ended: str | None = None  # "finished", "killed", or the failure text

    @property
    def name(self) -> str:
        """The error's, or the word for how it ended."""
        return str(self.ended).split(":")[0]


GOOD: Final = "good"
DIVERGED: Final = "diverged"  # ranks ended with other weights than they should
HUNG: Final = "hung"  # past its stated time
LOST: Final = "lost"  # ended without the result, or without the one error, that it should have
UNFIRED: Final = "unfired"  # what was to happen did not: the schedule proves nothing


@dataclass
class Outcome:
    """How a schedule ended."""

    verdict: str
    why: str = ""
    wall_s: float = 0.0
    weights_hash: str = ""
    lives: int = 0
    requests: int = 0
    expect: str = AGREE

    def beside(self, undisturbed_hash: str) -> "Outcome":
        """This outcome, diverged where its weights should be the undisturbed run's and are not."""
        if self.verdict == GOOD and self.expect == EQUAL and self.weights_hash != undisturbed_hash:
            return replace(self, verdict=DIVERGED, why="all agree, but not on the undisturbed run's weights")
        return self


@dataclass(frozen=True)
class Judge:
    """What is known at the end of a schedule."""

    schedule: Schedule
    lives: list[Life]
    found: Found
    keys: RunLayout
    hung: bool
    twin: bool
    damaged: bool

    def outcome(self) -> Outcome:
        """Hung comes first, then what did not fire: of such a run the end proves nothing."""
        ends = "; ".join(f"rank {life.rank} life {life.number}: {life.ended}" for life in self.lives)
        if self.hung:
            return Outcome(HUNG, f"after {self.schedule.limit_s:g} s: {ends}")
        if unfired := self._unfired():
            return Outcome(UNFIRED, f"did not fire: {unfired}; {ends}")
        for rank, error in self.schedule.expect_ended:
            if not any(rank in (None, life.rank) and life.name == error for life in self.lives):
                return Outcome(LOST, f"no process of rank {rank} ended as {error}: {ends}")
        if self.schedule.expect in (EQUAL, AGREE):
            return self._finished(ends)
        return self._failed(ends)

    def _finished(self, ends: str) -> Outcome:
        """Every rank must have finished all rounds, all with the same weights."""
        names = {life.name for life in self.lives}
        if "ReplicasDiverged" in names:
            return Outcome(DIVERGED, ends)
        # That a relaunch heals an error does not make it one that should have come about.
        if unexpected := names - {"finished", "killed"} - {error for _, error in self.schedule.expect_ended}:
            return Outcome(LOST, f"ended as {sorted(unexpected)}: {ends}")
        setting = self.schedule.setting
        results = [self.found.read(self.keys.result(rank)) for rank in range(setting.ranks)]
        finished = {life.rank for life in self.lives if life.ended == "finished"}
        there = [result for result in results if result is not None]
        if len(there) < setting.ranks or len(finished) < setting.ranks:
            return Outcome(LOST, ends)
        hashes, rounds = [result["weights_hash"] for result in there], {result["rounds"] for result in there}
        if len(set(hashes)) > 1:
            return Outcome(DIVERGED, f"ranks ended with {[h[:8] for h in hashes]}: {ends}")
        if rounds != {setting.rounds}:
            return Outcome(LOST, f"rounds {rounds}: {ends}")
        return Outcome(GOOD, weights_hash=hashes[0])

    def _failed(self, ends: str) -> Outcome:
        """All must have ended, one with the expected error, the others with it or for a lost peer."""
        names = {life.name for life in self.lives if life.ended not in ("killed", "finished")}
        if self.schedule.expect in names and names <= {self.schedule.expect, "PeerLost"}:
            return Outcome(GOOD)
        return Outcome(LOST, f"{self.schedule.expect} expected: {ends}")

    def _unfired(self) -> list[str]:
        """What should have happened and has not."""
        schedule, fired = self.schedule, self.found.fired
        missing = [t.key for t, times in zip(schedule.triggers, fired, strict=True) if times < t.times]
        first = next(life for life in self.lives if life.rank == schedule.rank)
        if schedule.local and not (Path(first.base) / FIRED).exists():
            missing.append(schedule.local)
        if schedule.damage and not self.damaged:
            missing.append(schedule.damage)
        if schedule.twin and not self.twin:
            missing.append("a second process")
        return missing
