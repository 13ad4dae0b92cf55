"""All schedules, by kind."""

import random
from collections.abc import Iterator
from itertools import cycle, product

from tests.chaos.schedule import (
    AGREE,
    KILL_AFTER,
    KILL_BEFORE,
    KILL_LATE,
    STOP,
    Schedule,
    Setting,
    Trigger,
)
from tests.support import fault_s3

# F, delay and alpha of every form of the outer loop.
LOOPS = ((1, 0, 0.0), (1, 2, 0.0), (2, 0, 0.0), (2, 1, 0.5))


def payload(round_index: int, rank: int) -> str:
    return rf"^diloco-data/.*/round_{round_index:06d}/rank_{rank:04d}\.c"


def contribution(round_index: int, rank: int) -> str:
    return rf"/log/round_{round_index:06d}/rank_{rank:04d}\.json$"


def roster(round_index: int) -> str:
    return rf"/log/round_{round_index:06d}/roster\.json$"


STORE_POINTS = {
    "before payload": (payload, KILL_BEFORE),
    "between payload and manifest": (contribution, KILL_BEFORE),
    "after manifest": (contribution, KILL_AFTER),
    "before roster": (lambda k, _: roster(k), KILL_BEFORE),
    "after roster": (lambda k, _: roster(k), KILL_AFTER),
}


def killed_at_the_store() -> Iterator[Schedule]:
    for (name, (key, what)), (fragments, delay, alpha) in product(STORE_POINTS.items(), LOOPS):
        for seed in range(3):
            chance = random.Random(f"{name} {fragments} {delay} {seed}")
            setting = Setting(2, fragments, delay, alpha)
            rank, round_index = chance.randrange(2), chance.randrange(6)
            trigger = Trigger("PUT", key(round_index, rank), what)
            yield Schedule("SIGKILL", name, setting, rank, (trigger,), seed=seed)


def sgd_killed() -> Iterator[Schedule]:
    """A first set: plain SGD, one fragment, no delay: catching up alone must give the same bits."""
    for name, (key, what) in STORE_POINTS.items():
        for seed in range(2):
            chance = random.Random(f"{name} {seed}")
            rank, round_index = chance.randrange(2), chance.randrange(6)
            trigger = Trigger("PUT", key(round_index, rank), what)
            yield Schedule("SIGKILL", name, Setting(inner="sgd"), rank, (trigger,), seed=seed)
    for round_index in (0, 3, 5):
        yield Schedule(
            "SIGKILL",
            "after the outer step",
            Setting(inner="sgd"),
            1,
            local="after the outer step",
            local_round=round_index,
        )


def all_schedules() -> list[Schedule]:
    return [*sgd_killed()]
