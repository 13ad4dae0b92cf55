"""What happens to processes: they are started, killed, started again; their puts land when they are gone."""

from collections.abc import Iterator

from tests.model_check import invariants
from tests.model_check.moves import Move, Turn, spend, stored
from tests.model_check.state import ENDED, INITIAL, Key, Process, Rule, Setting, State

OVERWRITING = ("payload", "mean payload")  # plain puts; everything else is created


def initial_state(setting: Setting) -> State:
    """Every rank's first process is about to take its claim."""
    first = tuple(Process(rank, 0, "claim", 0, shared=INITIAL) for rank in range(setting.ranks))
    return State(frozenset(), first, frozenset(), frozenset(), setting.faults)


def crashes(turn: Turn, steps: list[Move]) -> Iterator[Move]:
    """SIGKILL: before the step, or with the step's put on its way. A put that landed is the next step's."""
    process, state = turn.process, turn.state
    if not state.faults.crashes:
        return
    under_way = {
        frozenset(item for item in step.after.store - state.store if item[0][0] != "applied")
        for step in steps
        if isinstance(step.after, State) and step.is_progress
    }
    for puts in sorted(under_way or {frozenset()}, key=repr):
        what = f"dies, its put of {sorted(key for key, _ in puts)} under way" if puts else "dies"
        yield turn.move(what, fault="crashes", at="crashed", in_flight=tuple(puts))
    if process.at == "checkpoint":
        torn = (process.rank, process.round, process.claim, process.shared, False)
        yield turn.move("dies, its checkpoint torn", fault="crashes", at="crashed", checkpoints=(torn,))


def launches(setting: Setting, state: State) -> Iterator[Move]:
    """The launcher's attempt loop, and a second process beside one that only seems to be dead."""
    for rank in range(setting.ranks):
        lives = list(state.of_rank(rank))
        if len(lives) == setting.lives:
            continue
        if invariants.may_be_relaunched(state, rank):
            yield _launch(setting, state, rank, len(lives), is_double=False)
        elif state.faults.doubles and lives[-1].at not in ENDED:
            yield _launch(setting, state, rank, len(lives), is_double=True)


def _launch(setting: Setting, state: State, rank: int, life: int, *, is_double: bool) -> Move:
    """A process that has listed its rank's claims (RunLog.take_claim)."""
    taken = sum(key[:2] == ("claim", rank) for key, _ in state.store)
    started = Process(rank, life, "claim", taken, shared=INITIAL)
    faults = spend(state.faults, "doubles") if is_double else state.faults
    what = "started beside the one before" if is_double else "started again"
    processes = tuple(sorted((*state.processes, started)))
    return Move(
        f"rank {rank} life {life}: {what}",
        state._replace(processes=processes, faults=faults),
        not is_double,
    )


def landings(setting: Setting, state: State) -> Iterator[Move]:
    """A put lands whose process is dead or has given up waiting for the answer."""
    if not state.in_flight:
        return
    log = dict(state.store)
    for key, value in sorted(state.in_flight, key=repr):
        if key in log and not _overwrites(setting, key):
            continue
        try:
            invariants.landing(log, key, value)
        except invariants.Violation as violation:
            yield Move(f"{key} lands late", violation, is_progress=False)
            continue
        if key in log:
            continue
        after = state._replace(store=stored({**log, key: value}), in_flight=state.in_flight - {(key, value)})
        yield Move(f"{key} lands late", after, is_progress=False)


def _overwrites(setting: Setting, key: Key) -> bool:
    return key[0] in OVERWRITING or not setting.keeps(Rule.CREATE_ONLY)
