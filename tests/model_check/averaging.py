"""The steps that follow a round's roster: the mean, whole or in slices, and the outer step."""

from collections.abc import Iterator

from tests.model_check import invariants
from tests.model_check.moves import Move, Turn, creating
from tests.model_check.state import MeanSlice, Roster, Rule, bits, mean_of, outer_step


def average(turn: Turn) -> Iterator[Move]:
    """average_whole, should_commit and torchft's outer step: nothing of it leaves the process."""
    yield from apply(turn, turn.process.roster)


def put_slice(turn: Turn) -> Iterator[Move]:
    """ShardedMean._compute of its own slice, up to the payload."""
    process = turn.process
    key, made = _slice_payload(turn, process.slice)
    after = "announce" if turn.setting.keeps(Rule.PUBLISHED) else "slices"
    yield turn.move(f"puts slice {process.slice}", puts=((key, made),), at=after)


def _slice_payload(turn: Turn, index: int) -> tuple[tuple[str, int, int, int, int], int]:
    process = turn.process
    key = ("mean payload", process.round, index, process.rank, process.claim)
    return key, bits("slice", index, mean_under(turn, process.roster))


def announce(turn: Turn) -> Iterator[Move]:
    """RunLog.announce_slice: whose announcement stands doesn't matter, the bits are the same."""
    process = turn.process
    ours = MeanSlice(process.roster, *_slice_payload(turn, process.slice))
    for made in creating(turn, ("mean", process.round, process.slice), ours):
        what = f"{made.what} slice {process.slice}"
        if made.standing is None:
            yield turn.move(what, **made.effects, in_doubt=True)
        else:
            yield turn.move(what, **made.effects, in_doubt=False, at="slices")


def gather_slices(turn: Turn) -> Iterator[Move]:
    """ShardedMean.run: fetch what is announced, take over what is late, leave where the run is given up."""
    process, log = turn.process, turn.log
    missing = [i for i in range(turn.setting.ranks) if ("mean", process.round, i) not in log]
    if not missing or not turn.setting.keeps(Rule.PUBLISHED):
        yield from apply(turn, process.roster)
        return
    for index in missing:
        key, made = _slice_payload(turn, index)
        yield turn.move(f"takes over slice {index}", puts=((key, made),), at="announce", slice=index)
    if ("abort",) in log:
        yield turn.move("finds the run given up", at="peer lost")


def mean_under(turn: Turn, roster: Roster) -> int:
    """Averaging.mean_chunks: the members' verified payloads in rank order.

    A process takes its own part from memory where the roster means the payload that it has put.
    """
    return mean_of([turn.log.get(entry.payload_key, -1) for _, entry in sorted(roster.members)])


def apply(turn: Turn, roster: Roster) -> Iterator[Move]:
    """The mean through the outer step; for all ranks the same, checked against who was first."""
    process, setting = turn.process, turn.setting
    if setting.keeps(Rule.BASE_HASH) and roster.base_hash != process.shared:
        yield turn.move("is the odd one out", at="odd")  # ObjectStoreAllReduce._require_base
        return
    means = [("applies the mean", mean_under(turn, roster), None)]
    if not setting.keeps(Rule.RANK_ORDER):
        parts = [turn.log[entry.payload_key] for _, entry in sorted(roster.members, reverse=True)]
        means.append(("applies the mean, the last rank's part first", mean_of(parts), None))
    if turn.state.faults.damages:
        if setting.keeps(Rule.VERIFIED):
            yield turn.move("can't get a payload as it was put", fault="damages", at="damaged")
        else:
            means.append(("applies the mean of damaged bytes", bits("damaged"), "damages"))
    for what, mean, fault in means:
        key = ("applied", process.round)  # no object of the store: what the model remembers of the first
        try:
            invariants.applying(setting, turn.log, process, roster, mean)
        except invariants.Violation as violation:
            yield Move(f"{turn.label}: {what}", violation, fault is None, turn.index)
            continue
        yield turn.move(
            what,
            puts=() if key in turn.log else ((key, (roster, mean)),),
            fault=fault,
            at="checkpoint",
            round=process.round + 1,
            shared=outer_step(process.shared, mean),
            ours=None,
            roster=None,
            slice=-1,
        )
    if not setting.keeps(Rule.COMMITTED_IS_APPLIED):
        yield turn.move("passes over the mean", at="checkpoint", round=process.round + 1)
