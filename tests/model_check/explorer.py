"""Every state that can be reached, breadth first, so that the first trace to a violation is a shortest.

Partial-order reduction: where a process is at a step that nobody else can see or hinder, its moves
alone are followed (a persistent set). Whatever the others do first commutes with them. It is sound
for dead ends, too, since no fault-free path is endless: `measure` grows with each such move.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from tests.model_check import invariants
from tests.model_check.invariants import Violation
from tests.model_check.moves import Move, Turn
from tests.model_check.process import STEPS
from tests.model_check.state import ENDED, Process, Setting, State
from tests.model_check.surroundings import crashes, initial_state, landings, launches

# These put under keys of the process's own claim, and read what never changes once it is there.
UNSEEN: Final = frozenset({"payload", "average", "slice"})
ORDER: Final = {at: number for number, at in enumerate([*STEPS, *sorted(ENDED)])}


@dataclass(frozen=True)
class Explored:
    """How many states there are, how many of them are ends, and what was found."""

    states: int
    ends: int
    violation: Violation | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{number:3} {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([*lines, f"    {self.violation}", f"    {self.states} states explored"])


def explore(setting: Setting, invariant: str | None = None) -> Explored:
    """All states of `setting`, or as many as it takes to see `invariant` broken.

    None stops at the first violation of any. A state behind the violation of another isn't visited.
    """
    first = initial_state(setting)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    ends = 0
    while waiting:
        state = waiting.popleft()
        moves = moves_of(setting, state)
        if not any(move.is_progress for move in moves):
            ends += 1
            try:
                invariants.at_rest(setting, state)
            except Violation as violation:
                if invariant in (None, violation.invariant):
                    return Explored(len(came_from), ends, violation, _trace(came_from, state))
        for move in moves:
            if isinstance(move.after, Violation):
                if invariant in (None, move.after.invariant):
                    trace = (*_trace(came_from, state), move.label)
                    return Explored(len(came_from), ends, move.after, trace)
                continue
            if setting.without is None and move.is_progress and measure(move.after) <= measure(state):
                raise AssertionError(f"the model could go round in circles: {move.label}")
            if move.after not in came_from:
                came_from[move.after] = (state, move.label)
                waiting.append(move.after)
    return Explored(len(came_from), ends)


def moves_of(setting: Setting, state: State) -> list[Move]:
    """What may happen next in a state, or a part of it that leaves no violation unseen."""
    for index, process in enumerate(state.processes):
        if setting.without is None and _is_unseen(setting, state, process):
            return _moves_of_process(Turn(setting, state, index))
    moves: list[Move] = []
    for index, process in enumerate(state.processes):
        if process.at not in ENDED:
            moves += _moves_of_process(Turn(setting, state, index))
    return [*moves, *launches(setting, state), *landings(setting, state)]


def _moves_of_process(turn: Turn) -> list[Move]:
    steps = list(STEPS[turn.process.at](turn))
    return [*steps, *crashes(turn, steps)]


def _is_unseen(setting: Setting, state: State, process: Process) -> bool:
    if process.at != "checkpoint":
        return process.at in UNSEEN
    # A checkpoint is read by a later life of the rank that is about to start from it.
    others = [other.at for other in state.of_rank(process.rank) if other is not process]
    return not state.faults.doubles and not {"claim", "restore"}.intersection(others)


def measure(state: State) -> int:
    """What grows with every move that isn't a fault."""
    steps = sum(len(ORDER) * process.round + ORDER[process.at] + process.claim for process in state.processes)
    return steps + len(ORDER) * (len(state.store) + len(state.processes))


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels: list[str] = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return tuple(reversed(labels))
