"""The model's state: the store, the processes, what is under way, and how many faults may still come.

Weights and payloads are symbols: `bits` gives equal numbers to equal bytes, as a SHA-256 or a
checksum does in the trainer. Everything is immutable and hashable, so that a state is visited once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

Key = tuple[Any, ...]
Value = Any
Store = frozenset[tuple[Key, Value]]  # the bucket: what stands under each key


class Rule(Enum):
    """A rule of docs/architecture.md that can be left out, and the bug that leaving it out plants."""

    CLAIM_IN_KEY = "1: payload keys without the claim, and nobody looks whether it is superseded"
    PAYLOAD_FIRST = "2: the contribution before its payload"
    CREATE_ONLY = "2: the log is written with plain puts"
    DOUBTFUL_PUT = "3: whatever a create-only put answers, one's own bytes are taken to stand"
    ONE_ROSTER = "4: each goes on with the contributions that it has found, and by its own roster"
    RANK_ORDER = "5: sums in order of arrival"
    PUBLISHED = "6: a mean is applied before its slices are announced"
    COMMITTED_IS_APPLIED = "7: a process may pass over the mean of a round that was committed"
    CATCH_UP = "8: a relaunched process goes on at the head of the log without the means before"
    BASE_HASH = "9: nobody compares what the contributions start from"
    VERIFIED = "10: bytes read, of payloads and of checkpoints, are taken for what they should be"
    BOUNDED_WAIT = "11: a wait has no end, neither by time nor by the abort marker"

    @property
    def number(self) -> int:
        return int(self.value.split(":")[0])


class Faults(NamedTuple):
    """How many of each may still happen."""

    crashes: int = 0  # SIGKILL between any two steps; a put under way may land later, or never
    doubles: int = 0  # a second process of a rank whose first one still lives
    doubts: int = 0  # an answer lost, a 409, or a time-out of a put that lands later
    flips: int = 0  # a bit of the shared weights turns while a replica trains
    damages: int = 0  # a payload that doesn't arrive as it was put
    hasty: int = 0  # a peer that is only slow counts as lost


@dataclass(frozen=True)
class Setting:
    """What is explored. `lives` is how many processes a rank may have in all (max_relaunches + 1)."""

    ranks: int
    rounds: int
    faults: Faults
    sharded: bool = False
    lives: int = 2
    without: Rule | None = None

    def keeps(self, rule: Rule) -> bool:
        return self.without is not rule


class Process(NamedTuple):
    """One process: life number `life` of its rank. `at` is its next step, or how it ended."""

    rank: int
    life: int
    at: str
    claim: int
    round: int = 0
    shared: int = 0  # bits of the shared weights and the outer momentum
    in_doubt: bool = False  # a create-only put went unanswered: next, look what stands
    ours: Value = None  # the contribution that stands for this rank
    roster: Value = None
    slice: int = -1  # which slice of the mean it is computing


# Endings, as trainer/failures.py has them. Only after those in RELAUNCHED is the rank started again.
RELAUNCHED: Final = frozenset({"crashed", "odd", "damaged"})
ENDED: Final = RELAUNCHED | {"done", "superseded", "peer lost", "diverged"}


class State(NamedTuple):
    store: Store
    processes: tuple[Process, ...]
    in_flight: frozenset[tuple[Key, Value]]  # puts whose process no longer waits for them
    checkpoints: frozenset[tuple[int, int, int, int, bool]]  # rank, round, claim, shared weights, whole
    faults: Faults

    def of_rank(self, rank: int) -> Iterator[Process]:
        return (process for process in self.processes if process.rank == rank)


class Contribution(NamedTuple):
    """As trainer.rendezvous.documents.Contribution, of the same names."""

    claim: int
    base_hash: int
    payload_key: Key
    payload_bits: int  # stands for the checksums


class Roster(NamedTuple):
    base_hash: int
    members: tuple[tuple[int, Contribution], ...]  # rank, and the contribution that its digest proves


class MeanSlice(NamedTuple):
    roster: Roster
    payload_key: Key
    payload_bits: int


@dataclass
class _Bits:
    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def __call__(self, *made_of: Any) -> int:
        return self.numbers.setdefault(made_of, len(self.numbers))


bits: Final = _Bits()
FLIPPED: Final[set[int]] = set()
INITIAL: Final = bits("initial weights")
TORN: Final = bits("what could be read of a torn checkpoint")


def mean_of(payloads: list[int]) -> int:
    """The bits of a mean: those of its parts, and of the order in which they were summed."""
    return bits("mean", tuple(payloads))


def outer_step(shared: int, mean: int) -> int:
    return bits("outer step", shared, mean)


def flipped(shared: int) -> int:
    number = bits("a flipped bit", shared)
    FLIPPED.add(number)
    return number
