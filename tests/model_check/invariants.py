"""What must hold, checked when something lands in the store, when a mean is applied, and at rest."""

from collections.abc import Mapping

from tests.model_check.state import (
    ENDED,
    FLIPPED,
    INITIAL,
    RELAUNCHED,
    Contribution,
    Key,
    MeanSlice,
    Process,
    Roster,
    Setting,
    State,
    Value,
    mean_of,
    outer_step,
)


class Violation(Exception):
    """An invariant that doesn't hold, by its name, and how."""

    def __init__(self, invariant: str, how: str) -> None:
        super().__init__(f"{invariant}: {how}")
        self.invariant = invariant


def check(invariant: str, holds: bool, how: str) -> None:
    if not holds:
        raise Violation(invariant, how)


def fold(log: Mapping[Key, Value], rounds: int) -> int:
    """The shared weights after `rounds` rounds: a function of the log and of nothing else."""
    shared = INITIAL
    for round_index in range(rounds):
        roster: Roster | None = log.get(("roster", round_index))
        check("shared weights are the fold of the log", roster is not None, f"round {round_index} is open")
        assert roster is not None
        shared = outer_step(shared, mean_of([log[entry.payload_key] for _, entry in sorted(roster.members)]))
    return shared


def landing(log: Mapping[Key, Value], key: Key, value: Value) -> None:
    """Whatever reaches the store, whether or not somebody still waits for the answer."""
    standing = log.get(key)
    check("no key is written twice", standing in (None, value), f"{key} held {standing}, now {value}")
    if isinstance(value, Contribution | MeanSlice):
        check(
            "a manifest's bytes are in the store",
            log.get(value.payload_key) == value.payload_bits,
            f"{key} names {value.payload_key}, which holds {log.get(value.payload_key)}",
        )
    if isinstance(value, Contribution):
        _contribution(log, key[1], key, value)
    if isinstance(value, Roster):
        for rank, entry in value.members:
            found = log.get(("contribution", key[1], rank))
            check("a roster's members are in the log", found == entry, f"{key} and rank {rank}: {found}")


def _contribution(log: Mapping[Key, Value], round_index: int, key: Key, value: Contribution) -> None:
    name = "no contribution below the head, none ahead of it"
    check(name, ("roster", round_index) not in log, f"{key} comes after its round's roster")
    check(name, all(("roster", k) in log for k in range(round_index)), f"{key} comes before a roster")
    # A flipped bit is in no rule's power; rule 9 keeps it from being applied.
    check(
        "a contribution starts from its round's base",
        value.base_hash == fold(log, round_index) or value.base_hash in FLIPPED,
        f"{key} starts from {value.base_hash}, the log's fold is {fold(log, round_index)}",
    )


def applying(setting: Setting, log: Mapping[Key, Value], process: Process, roster: Roster, mean: int) -> None:
    """A mean as it goes into a process's outer step, at once for the run's every process."""
    k = process.round
    slices = [("mean", k, index) for index in range(setting.ranks)] if setting.sharded else []
    for key in (("roster", k), *slices):
        # A process that finds the round committed averages the members' payloads, which outlive the run.
        if key[0] == "mean" and process.at == "round":
            continue
        check("published before applied", key in log, f"{key} is missing when rank {process.rank} applies")
    first = log.get(("applied", k), (roster, mean))
    check("all apply the same mean of the same roster", first == (roster, mean), f"{first}, {(roster, mean)}")


def advanced(log: Mapping[Key, Value], process: Process) -> None:
    """A process that says to have `process.round` rounds behind it."""
    check(
        "shared weights are the fold of the log",
        process.shared == fold(log, process.round),
        f"rank {process.rank} at round {process.round} has {process.shared}, not {fold(log, process.round)}",
    )


def is_lost(setting: Setting, state: State, rank: int) -> bool:
    """Whether nothing will ever come of this rank again."""
    lives = list(state.of_rank(rank))
    used_up = len(lives) == setting.lives or not may_be_relaunched(state, rank)
    return used_up and all(process.at in ENDED and process.at != "done" for process in lives)


def may_be_relaunched(state: State, rank: int) -> bool:
    """The launcher follows the newest process of a rank: infra/replica_states.py."""
    newest = max(state.of_rank(rank), key=lambda process: process.life)
    return newest.at in RELAUNCHED and all(process.at in ENDED - {"done"} for process in state.of_rank(rank))


def at_rest(setting: Setting, state: State) -> None:
    """Nothing but faults can happen any more: everybody has ended, and for a reason that it knows."""
    name = "the run ends"
    for process in state.processes:
        check(name, process.at in ENDED, f"rank {process.rank} is stuck for ever at: {process.at}")
    log = dict(state.store)
    for rank in range(setting.ranks):
        ends = {process.at for process in state.of_rank(rank)}
        check(
            name,
            "done" in ends or ("abort",) in log or is_lost(setting, state, rank),
            f"rank {rank} has ended as {ends} without the run being done or given up",
        )
