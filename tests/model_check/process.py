"""The steps of one process, each named after the function of the trainer that it stands for.

What a step reads and what it puts is one move; a crash, or another process, may come between any
two. Training itself is no step: what a rank contributes is a function of rank, life, round and base.
The bits of two lives differ even from the same base, since inner steps may on another machine.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tests.model_check import invariants
from tests.model_check.averaging import announce, apply, average, gather_slices, mean_under, put_slice
from tests.model_check.moves import Move, Turn, creating
from tests.model_check.state import (
    TORN,
    Contribution,
    Roster,
    Rule,
    bits,
    flipped,
    outer_step,
)


def claim(turn: Turn) -> Iterator[Move]:
    """RunLog.take_claim; `process.claim` is the number it tries, at first from a listing."""
    process = turn.process
    if not turn.setting.keeps(Rule.CLAIM_IN_KEY):
        yield turn.move("takes no claim", at="restore")
        return
    nonce = (process.rank, process.life)
    for made in creating(turn, ("claim", process.rank, process.claim), nonce):
        what = f"{made.what} claim {process.claim}"
        if made.standing is None:
            yield turn.move(what, **made.effects, in_doubt=True)
        elif made.standing == nonce:
            yield turn.move(what, **made.effects, in_doubt=False, at="restore")
        else:
            yield turn.move(what, **made.effects, in_doubt=False, claim=process.claim + 1)


def restore(turn: Turn) -> Iterator[Move]:
    """make_diloco_outer_loop: the newest whole checkpoint or none, then manager.catch_up to the head.

    One round behind the head it redoes the round (ObjectStoreAllReduce.run finds the roster), further
    behind it replays. A checkpoint may be lost with its machine, hence also none.
    """
    process, log = turn.process, turn.log
    mine = sorted(entry for entry in turn.state.checkpoints if entry[0] == process.rank)
    if turn.setting.keeps(Rule.VERIFIED):
        mine = [entry for entry in mine if entry[4]]
    starts = [("nothing", 0, process.shared)]
    if mine:
        _, round_index, _, shared, whole = mine[-1]
        starts.append((f"the checkpoint of round {round_index}", round_index, shared if whole else TORN))
    head = next(k for k in range(turn.setting.rounds + 1) if ("roster", k) not in log)
    for name, round_index, shared in starts:
        if not turn.setting.keeps(Rule.CATCH_UP):
            yield _arrive(turn, f"starts from {name}", head, shared)
        elif head - round_index < 2:
            yield _arrive(turn, f"starts from {name}", round_index, shared)
        else:
            yield _replay(turn, name, round_index, shared, head)


def _replay(turn: Turn, name: str, round_index: int, shared: int, head: int) -> Move:
    """manager.catch_up: committed_mean and an outer step for each round to the head."""
    for k in range(round_index, head):
        roster: Roster = turn.log["roster", k]
        if turn.setting.keeps(Rule.BASE_HASH) and roster.base_hash != shared:
            return turn.move(f"replays from {name}, is the odd one out", at="odd")
        shared = outer_step(shared, mean_under(turn, roster))
    return _arrive(turn, f"replays from {name}", head, shared)


def _arrive(turn: Turn, what: str, round_index: int, shared: int) -> Move:
    at = "done" if round_index == turn.setting.rounds else "round"
    return turn.move(what, at=at, round=round_index, shared=shared)


def begin_round(turn: Turn) -> Iterator[Move]:
    """ObjectStoreAllReduce.run up to the roster: Standing.check, then whether the round is committed."""
    process, log = turn.process, turn.log
    if ("abort",) in log:
        yield turn.move("finds the run given up", at="peer lost")
    elif _is_superseded(turn):
        yield turn.move("finds a later claim", at="superseded")
    elif ("roster", process.round) in log:
        yield from apply(turn, log["roster", process.round])
    else:
        yield turn.move("begins", at="payload" if turn.setting.keeps(Rule.PAYLOAD_FIRST) else "contribute")
    if turn.state.faults.flips:
        yield turn.move("a bit flips", fault="flips", shared=flipped(process.shared))


def put_payload(turn: Turn) -> Iterator[Move]:
    """Payload.put in Contributor.contribute: durable when it returns, under a key nobody else uses."""
    after = "contribute" if turn.setting.keeps(Rule.PAYLOAD_FIRST) else "commit"
    ours = contribution(turn)
    yield turn.move("puts its payload", puts=((ours.payload_key, ours.payload_bits),), at=after)


def contribution(turn: Turn) -> Contribution:
    """What this process has to say in its round, before anybody answers."""
    process = turn.process
    claimed = process.claim if turn.setting.keeps(Rule.CLAIM_IN_KEY) else 0
    key = ("payload", process.round, process.rank, claimed)
    made = bits("pseudo-gradient", process.rank, process.life, process.round, process.shared)
    return Contribution(claimed, process.shared, key, made)


def contribute(turn: Turn) -> Iterator[Move]:
    """RunLog.contribute in Contributor.contribute: the first of its rank stands, whoever wrote it."""
    process = turn.process
    ours = contribution(turn)
    after = "commit" if turn.setting.keeps(Rule.PAYLOAD_FIRST) else "payload"
    for made in creating(turn, ("contribution", process.round, process.rank), ours):
        what = f"{made.what} its contribution"
        if made.standing is None:
            yield turn.move(what, **made.effects, in_doubt=True)
        elif made.standing.claim > ours.claim:
            yield turn.move(f"{what}, of a later claim", **made.effects, in_doubt=False, at="superseded")
        else:
            yield turn.move(what, **made.effects, in_doubt=False, at=after, ours=made.standing)


def commit(turn: Turn) -> Iterator[Move]:
    """ContributionWait.until_complete, then ObjectStoreAllReduce._commit."""
    process, log, setting = turn.process, turn.log, turn.setting
    found = [
        (rank, log["contribution", process.round, rank])
        for rank in range(setting.ranks)
        if ("contribution", process.round, rank) in log
    ]
    if not setting.keeps(Rule.ONE_ROSTER):
        yield from _commit(turn, [entry for entry in found if entry[0] == process.rank])
    if len(found) == setting.ranks:
        yield from _commit(turn, found)
        return
    if not setting.keeps(Rule.BOUNDED_WAIT):
        return
    missing = set(range(setting.ranks)) - {rank for rank, _ in found}
    if ("abort",) in log:
        yield turn.move("waits, finds the run given up", at="peer lost")
    elif _is_superseded(turn):
        yield turn.move("waits, finds a later claim", at="superseded")
    elif any(invariants.is_lost(setting, turn.state, rank) for rank in missing):
        yield turn.move(f"gives up ranks {missing}", puts=turn.abort(), at="peer lost")
    elif turn.state.faults.hasty:
        yield turn.move(f"gives up ranks {missing}", puts=turn.abort(), at="peer lost", fault="hasty")


def _commit(turn: Turn, found: list[tuple[int, Contribution]]) -> Iterator[Move]:
    bases = [entry.base_hash for _, entry in found]
    agreed = max(bases, key=bases.count)
    if not turn.setting.keeps(Rule.BASE_HASH):
        agreed = turn.process.shared
    elif 2 * bases.count(agreed) <= len(bases):  # ObjectStoreAllReduce._agreed_base
        yield turn.move("finds no majority", puts=turn.abort(), at="diverged")
        return
    ours = Roster(agreed, tuple(found))
    for made in creating(turn, ("roster", turn.process.round), ours):
        what = f"{made.what} the roster"
        standing = made.standing if turn.setting.keeps(Rule.ONE_ROSTER) else ours
        if made.standing is None:
            yield turn.move(what, **made.effects, in_doubt=True)
        elif turn.setting.keeps(Rule.BASE_HASH) and standing.base_hash != turn.process.shared:
            yield turn.move(f"{what}, is the odd one out", **made.effects, in_doubt=False, at="odd")
        else:
            after = "slice" if turn.setting.sharded else "average"
            yield turn.move(
                what, **made.effects, in_doubt=False, roster=standing, at=after, slice=turn.process.rank
            )


def checkpoint(turn: Turn) -> Iterator[Move]:
    """Checkpoints.write, waited for before the next contribution; the index comes last of its files."""
    process = turn.process
    entry = (process.rank, process.round, process.claim, process.shared, True)
    at = "done" if process.round == turn.setting.rounds else "round"
    yield turn.move("keeps a checkpoint", checkpoints=(entry,), at=at)


def _is_superseded(turn: Turn) -> bool:
    """RunLog.is_superseded."""
    keeps = turn.setting.keeps(Rule.CLAIM_IN_KEY)
    return keeps and ("claim", turn.process.rank, turn.process.claim + 1) in turn.log


STEPS: Final[dict[str, Callable[[Turn], Iterator[Move]]]] = {
    "claim": claim,
    "restore": restore,
    "checkpoint": checkpoint,  # of the round before, while the next one is trained
    "round": begin_round,
    "payload": put_payload,
    "contribute": contribute,
    "commit": commit,
    "average": average,
    "slice": put_slice,
    "announce": announce,
    "slices": gather_slices,
}
