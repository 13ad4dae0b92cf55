"""All schedules, by kind. Where something happens, and to whom, is drawn from the schedule's seed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from tests.chaos import keys
from tests.chaos.damage import DAMAGE, DAMAGE_ALL
from tests.chaos.schedule import (
    AGREE,
    EQUAL,
    KILL_AFTER,
    KILL_BEFORE,
    KILL_LATE,
    STOP,
    TERM,
    Schedule,
    Setting,
    Trigger,
)
from tests.chaos.store_faults import store_faults

# F, delay and alpha of every form of the outer loop.
LOOPS: Final = ((1, 0, 0.0), (1, 2, 0.0), (2, 0, 0.0), (2, 1, 0.5))
WIRES: Final = (("bf16", "fp32"), ("int8", "fp32"), ("int4", "bf16"), ("fp32", "bf16"))
ROUNDS: Final = 6

KeyOf = Callable[[int, int], str]
STORE_POINTS: Final[dict[str, tuple[KeyOf, str]]] = {
    "before payload": (keys.payload, KILL_BEFORE),
    "between payload and manifest": (keys.contribution, KILL_BEFORE),
    "after manifest": (keys.contribution, KILL_AFTER),
    "before roster": (keys.roster, KILL_BEFORE),
    "after roster": (keys.roster, KILL_AFTER),
}
AFTER_OUTER_STEP: Final = "after the outer step"


def all_schedules() -> list[Schedule]:
    kinds = (
        killed_at_the_store, killed_inside, killed_mid_slice, killed_on_every_wire, put_late, killed_together,
        killed_twice, killed_at_the_ends, killed_mid_checkpoint,
        torn_checkpoints, disk_full, asked_to_stop, stopped, two_live_processes, clocks_apart, store_faults,
    )  # fmt: skip
    return [schedule for kind in kinds for schedule in kind()]


def killed_at_the_store() -> Iterator[Schedule]:
    for (point, (key, what)), loop, seed in product(STORE_POINTS.items(), LOOPS, range(4)):
        rank, round_index = _drawn(point, loop, seed)
        trigger = Trigger("PUT", key(round_index, rank), what)
        yield Schedule("SIGKILL", point, Setting(2, *loop), rank, (trigger,), seed=seed)


def killed_inside() -> Iterator[Schedule]:
    for loop, seed in product(LOOPS, range(4)):
        rank, round_index = _drawn(AFTER_OUTER_STEP, loop, seed)
        yield _local("SIGKILL", AFTER_OUTER_STEP, Setting(2, *loop), rank, round_index, seed)


def killed_mid_slice() -> Iterator[Schedule]:
    """Three ranks, each with a slice of every mean: its owner dies, and others take it over."""
    points: dict[str, tuple[KeyOf, str]] = {
        "mid-slice: before its payload": (keys.slice_payload, KILL_BEFORE),
        "mid-slice: before it is announced": (keys.slice_announced, KILL_BEFORE),
        "mid-slice: after it is announced": (keys.slice_announced, KILL_AFTER),
    }
    for (point, (key, what)), loop, seed in product(points.items(), LOOPS, range(2)):
        rank, round_index = _drawn(point, loop, seed, ranks=3)
        trigger = Trigger("PUT", key(round_index, rank), what)
        yield Schedule("SIGKILL", point, Setting(3, *loop), rank, (trigger,), sharded=True, seed=seed)
    for (point, (key, what)), (wire, mean) in product(points.items(), WIRES):
        rank, round_index = _drawn(point, wire, mean, ranks=3)
        trigger = Trigger("PUT", key(round_index, rank), what)
        setting = Setting(3, 2, 1, 0.5, wire, mean)
        yield Schedule("SIGKILL, other wire formats", point, setting, rank, (trigger,), sharded=True)


def killed_on_every_wire() -> Iterator[Schedule]:
    for (wire, mean), (point, (key, what)), seed in product(WIRES, STORE_POINTS.items(), range(1)):
        rank, round_index = _drawn(point, wire, seed)
        trigger = Trigger("PUT", key(round_index, rank), what)
        setting = Setting(2, wire=wire, mean=mean)
        yield Schedule("SIGKILL, other wire formats", point, setting, rank, (trigger,), seed=seed)
    for wire, mean in WIRES:
        yield _local(
            "SIGKILL, other wire formats", AFTER_OUTER_STEP, Setting(2, 2, wire=wire, mean=mean), 1, 3, 0
        )


def put_late() -> Iterator[Schedule]:
    """What a process put arrives after it has died and its rank was taken up again."""
    points = {"payload": keys.payload, "manifest": keys.contribution, "roster": keys.roster}
    for (point, key), loop in product(points.items(), LOOPS):
        rank, round_index = _drawn(point, loop, 0)
        trigger = Trigger("PUT", key(round_index, rank), KILL_LATE, pause_s=1.0)
        yield Schedule("SIGKILL, the put lands late", point, Setting(2, *loop), rank, (trigger,))


def killed_together() -> Iterator[Schedule]:
    """Every rank dies in the same round, each at another point."""
    for loop, seed in product(LOOPS, range(2)):
        chance = random.Random(f"together {loop} {seed}")
        round_index, points = chance.randrange(ROUNDS), ("before payload", "after manifest")
        triggers = tuple(
            Trigger("PUT", STORE_POINTS[point][0](round_index, rank), STORE_POINTS[point][1])
            for rank, point in enumerate(chance.sample(points, 2))
        )
        yield Schedule("SIGKILL", "every rank in one round", Setting(2, *loop), 0, triggers, seed=seed)


def killed_twice() -> Iterator[Schedule]:
    """The second life dies as well, in the same round or the next."""
    for loop, apart in product(LOOPS, (0, 1)):
        rank, round_index = _drawn("twice", loop, apart, rounds=ROUNDS - 1)
        first = Trigger("PUT", keys.payload(round_index, rank), KILL_BEFORE)
        second = Trigger("PUT", keys.payload(round_index + apart, rank), KILL_AFTER)
        yield Schedule("SIGKILL", "two lives of a rank", Setting(2, *loop), rank, (first, second), seed=apart)


def killed_at_the_ends() -> Iterator[Schedule]:
    """At the first and at the last things a replica writes."""
    points = {
        "claim": r"/claims/rank_0001\.0\.json$",
        "initial weights": r"/initial/.*safetensors$",
        "initial manifest": r"/initial/manifest\.json$",
        "result": r"/results/rank_0001\.json$",
    }
    for (point, key), (when, what) in product(
        points.items(), (("before", KILL_BEFORE), ("after", KILL_AFTER))
    ):
        trigger = Trigger("PUT", key, what)
        yield Schedule("SIGKILL", f"{when} the {point}", Setting(2, 2, 1, 0.5), 1, (trigger,))


def killed_mid_checkpoint() -> Iterator[Schedule]:
    points = ("between its files", "before its index", "before its name", "while the oldest one goes")
    for point, loop in product(points, LOOPS):
        rank, round_index = _drawn(point, loop)
        round_index = max(round_index, 3)  # from here on there is an oldest one
        yield _local("SIGKILL", f"mid-checkpoint: {point}", Setting(2, *loop), rank, round_index, 0)


def torn_checkpoints() -> Iterator[Schedule]:
    """What reached S3 is not whole: the one before is a round older, and its inner steps are taken again."""
    for damage, loop in product(DAMAGE, LOOPS):
        rank, round_index = _drawn(damage, loop)
        kill = Trigger("PUT", keys.payload(max(round_index, 2), rank), KILL_BEFORE)
        yield Schedule("torn checkpoint", damage, Setting(2, *loop), rank, (kill,), damage=damage)
    for damage, inner in product(DAMAGE_ALL, ("sgd", "adamw")):
        # The log alone brings the shared weights back. The inner optimizer's state is lost for good.
        kill = Trigger("PUT", keys.contribution(4, 1), KILL_AFTER)
        expect = EQUAL if inner == "sgd" else AGREE
        yield Schedule(
            "torn checkpoint", damage, Setting(2, inner=inner), 1, (kill,), damage=damage, expect=expect
        )


def disk_full() -> Iterator[Schedule]:
    """One clear error; a relaunch with room goes on from what is there, one without gives the run up."""
    ended = ((1, "CheckpointNotWritten"),)
    for loop in LOOPS:
        once = _local("disk full", "disk full", Setting(2, *loop), 1, 3, 0)
        yield replace(once, point="in the first life", expect_ended=ended)
        yield replace(once, point="in every life", local_lives=9, expect="CheckpointNotWritten")


def asked_to_stop() -> Iterator[Schedule]:
    """A spot interruption with a warning: the process leaves in order, and another goes on for it."""
    points = {"payload": keys.payload, "manifest": keys.contribution, "roster": keys.roster}
    for (point, key), loop in product(points.items(), LOOPS):
        rank, round_index = _drawn("spot", point, loop, rounds=ROUNDS - 2)
        trigger = Trigger("PUT", key(round_index, rank), TERM)
        # The roster is put by whoever comes first, and that one leaves.
        ended = (None if point == "roster" else rank, "Stopped")
        yield Schedule(
            "SIGTERM, then started again", f"at its {point}", Setting(2, *loop), rank, (trigger,),
            spot=True, expect_ended=(ended,),
        )  # fmt: skip


def stopped() -> Iterator[Schedule]:
    """SIGSTOP: within the bound nothing is lost; past it the run ends with one error."""
    for (point, (key, _)), (fragments, delay, alpha) in product(STORE_POINTS.items(), LOOPS[::3]):
        if point in ("after manifest", "after roster"):
            continue
        rank, round_index = _drawn(f"stopped {point}", fragments, 0)
        trigger = Trigger("PUT", key(round_index, rank), STOP, pause_s=1.0)
        yield Schedule("SIGSTOP of 1 s", point, Setting(2, fragments, delay, alpha), rank, (trigger,))
    long = Trigger("PUT", keys.contribution(2, 1), STOP, pause_s=30.0)
    yield Schedule("SIGSTOP of 30 s", "at its manifest", Setting(2, 2, 1, 0.5), 1, (long,))
    for rank in (0, 1):
        lost = Trigger("PUT", keys.payload(3, rank), STOP, pause_s=8.0)
        yield Schedule(
            "SIGSTOP past timeout_s", "at its payload", Setting(), rank, (lost,),
            timeout_s=3.0, expect="PeerLost",
        )  # fmt: skip


def two_live_processes() -> Iterator[Schedule]:
    """A process that only seemed dead goes on beside the one that took up its rank, and must leave."""
    points = {"payload": keys.payload, "manifest": keys.contribution}
    for (point, key), loop, later in product(points.items(), LOOPS, (False, True)):
        round_index = random.Random(f"{point} {loop} {later}").randrange(ROUNDS - 2)
        until = keys.payload(round_index + 1, 1) if later else keys.claim(1, 1)
        trigger = Trigger("PUT", key(round_index, 1), STOP, pause_s=0.01, until=until)
        point = f"stopped at its {point}, back {'a round later' if later else 'at once'}"
        yield Schedule(
            "two live processes of a rank", point, Setting(2, *loop), 1, (trigger,),
            twin=True, expect_ended=((1, "Superseded"),),
        )  # fmt: skip


def clocks_apart() -> Iterator[Schedule]:
    for point, loop in product(("clock hours ahead", "clock hours behind"), LOOPS):
        rank, _ = _drawn(point, loop, 0)
        yield _local("clocks apart", point, Setting(2, *loop), rank, 0, 0)


def _drawn(*what: object, ranks: int = 2, rounds: int = ROUNDS) -> tuple[int, int]:
    """A rank and a round."""
    chance = random.Random(" ".join(map(str, what)))
    return chance.randrange(ranks), chance.randrange(rounds)


def _local(kind: str, point: str, setting: Setting, rank: int, round_index: int, seed: int) -> Schedule:
    return Schedule(kind, point, setting, rank, local=point, local_round=round_index, seed=seed)
