"""A schedule: one small run, and what happens to it. Data, so that a failure can be played again."""

from dataclasses import dataclass
from typing import Final

# What may be expected of a run's end, beside the name of the one error that it must end with.
EQUAL: Final = "equal"  # every rank finished, with the undisturbed run's weights
AGREE: Final = "agree"  # every rank finished, all with the same weights (inner state was lost for good)

# What a trigger does to the process whose request it is, beyond the faults of tests/support/s3_faults.py.
KILL_BEFORE: Final = "SIGKILL, nothing stored"
KILL_AFTER: Final = "stored, then SIGKILL before the answer"
KILL_LATE: Final = "SIGKILL, and stored a while later"
TERM: Final = "SIGTERM, and stored"
STOP: Final = "SIGSTOP, stored, SIGCONT after a while"


@dataclass(frozen=True)
class Setting:
    """What decides a run's weights. Runs of the same setting must end with the same bits."""

    ranks: int = 2
    fragments: int = 1
    delay: int = 0
    alpha: float = 0.0
    wire: str = "fp32"
    mean: str = "fp32"
    inner: str = "adamw"  # which trainer function: adamw or sgd
    rounds: int = 6

    @property
    def sync_every(self) -> int:
        return 4

    @property
    def total_steps(self) -> int:
        return self.rounds * self.sync_every // self.fragments

    def __str__(self) -> str:
        wire = self.wire if self.mean == "fp32" else f"{self.wire}/{self.mean}"
        return f"{self.ranks} ranks F={self.fragments} d={self.delay} {wire} {self.inner}"


@dataclass(frozen=True)
class Trigger:
    """Something that the server does at the next `times` requests of this verb whose key matches."""

    verb: str
    key: str  # a regular expression, searched for in the key
    what: str
    times: int = 1
    pause_s: float = 0.5  # of STOP and KILL_LATE
    until: str | None = None  # of STOP: goes on `pause_s` after this was put


@dataclass(frozen=True)
class Schedule:
    """One run. `rank` is the one to which local things happen, in its first life."""

    kind: str
    point: str
    setting: Setting
    rank: int = 0
    triggers: tuple[Trigger, ...] = ()
    local: str | None = None  # a disturbance of disturbances.py, inside the process of `rank`
    local_round: int = 0
    local_lives: int = 1  # in how many lives of the rank it is installed
    damage: str | None = None  # what becomes of the checkpoint folder between two lives: damage.py
    twin: bool = False  # once the process is stopped, a second one takes up its rank, and both go on
    spot: bool = False  # a process that was asked to stop is started again, as SageMaker does with spot jobs
    sharded: bool = False
    expect: str = EQUAL
    expect_ended: tuple[tuple[int | None, str], ...] = ()  # (rank or None for any, error): so a life must end
    timeout_s: float = 60.0
    limit_s: float = 120.0  # past this the run hangs
    bug: str | None = None  # a planted bug of planted.py: the run must fail
    seed: int = 0

    def __str__(self) -> str:
        requests = ", ".join(f"{trigger.verb} {trigger.key}" for trigger in self.triggers)
        requests = ", ".join(f"{trigger.verb} {trigger.key}" for trigger in self.triggers)
        where = f"round {self.local_round}" if self.local else requests
        what = f"{self.kind}: {self.bug or self.point}: {self.setting}"
        return f"{what} rank {self.rank} seed {self.seed} ({where})"
