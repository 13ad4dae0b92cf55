"""How a move is made: what one step of one process puts, and what may become of a create-only put."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.model_check import invariants
from tests.model_check.state import Faults, Key, Process, Rule, Setting, State, Store, Value

Put = tuple[Key, Value]


@dataclass(frozen=True)
class Move:
    """What somebody may do next. `after` is the state it leads to, or the invariant that it breaks.

    `is_progress` marks what happens by itself if nothing else goes wrong; faults and puts that land
    late may or may not come.
    """

    label: str
    after: State | invariants.Violation
    is_progress: bool = True
    process: int | None = None  # whose move it is, by its place in State.processes


def spend(faults: Faults, name: str) -> Faults:
    return faults._replace(**{name: getattr(faults, name) - 1})


_stores: dict[Store, Store] = {}


def stored(log: Mapping[Key, Value]) -> Store:
    """One object for each content, so that equal stores of many states are held and hashed once."""
    store = frozenset(log.items())
    return _stores.setdefault(store, store)


@dataclass(frozen=True)
class Turn:
    """One process's chance to move in one state."""

    setting: Setting
    state: State
    index: int

    @property
    def process(self) -> Process:
        return self.state.processes[self.index]

    @cached_property
    def log(self) -> dict[Key, Value]:
        return dict(self.state.store)

    @property
    def label(self) -> str:
        process = self.process
        return f"rank {process.rank} life {process.life} round {process.round} at {process.at}"

    def move(
        self,
        what: str,
        *,
        puts: tuple[Put, ...] = (),
        in_flight: tuple[Put, ...] = (),
        checkpoints: tuple[tuple[int, int, int, int, bool], ...] = (),
        fault: str | None = None,
        **changes: Any,
    ) -> Move:
        """The state after `puts` have landed and the process has changed as `changes` say."""
        state = self.state
        label = f"{self.label}: {what}"
        process = self.process._replace(**changes)
        store = state.store
        try:
            if puts:
                log = dict(self.log)
                for key, value in puts:
                    invariants.landing(log, key, value)
                    log[key] = value
                store = stored(log)
            if process.round != self.process.round:
                invariants.advanced(dict(store), process)
        except invariants.Violation as violation:
            return Move(label, violation, fault is None, self.index)
        processes = (*state.processes[: self.index], process, *state.processes[self.index + 1 :])
        after = State(
            store,
            processes,
            state.in_flight | set(in_flight) if in_flight else state.in_flight,
            state.checkpoints | set(checkpoints) if checkpoints else state.checkpoints,
            spend(state.faults, fault) if fault else state.faults,
        )
        return Move(label, after, fault is None, self.index)

    def abort(self) -> tuple[Put, ...]:
        """RunLog.abort: the first marker stands, and nobody takes it back."""
        return () if ("abort",) in self.log else ((("abort",), "given up"),)


@dataclass(frozen=True)
class Created:
    """An outcome of a create-only put: what `Turn.move` has to do, and what the process takes to stand.

    `standing` is None where the answer was none: it looks in its next step.
    """

    what: str
    effects: dict[str, Any]
    standing: Value | None


def creating(turn: Turn, key: Key, value: Value) -> Iterator[Created]:
    """ObjectStore.create: put unless there is something; whatever the answer but success, look."""
    there = turn.log.get(key)
    keeps = turn.setting.keeps
    if there is None:
        yield Created("creates", {"puts": ((key, value),)}, value)
    elif not keeps(Rule.CREATE_ONLY):
        yield Created("overwrites", {"puts": ((key, value),)}, value)
    elif keeps(Rule.DOUBTFUL_PUT):
        yield Created("finds", {}, there)
    else:
        yield Created("is told that there is one", {}, value)
    if not turn.state.faults.doubts or turn.process.in_doubt:
        return
    believed = None if keeps(Rule.DOUBTFUL_PUT) else value
    if there is None:
        yield Created("creates, answer lost", {"puts": ((key, value),), "fault": "doubts"}, believed)
    yield Created("409, nothing landed", {"fault": "doubts"}, believed)
    yield Created("time-out, may land later", {"in_flight": ((key, value),), "fault": "doubts"}, believed)
