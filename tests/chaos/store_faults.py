"""Schedules in which the store misbehaves: every fault that the server of tests/support knows."""

from collections.abc import Iterator
from itertools import product
from typing import Final

from tests.chaos import keys
from tests.chaos.schedule import Schedule, Setting, Trigger
from tests.support import s3_faults

SETTINGS: Final = (Setting(2), Setting(2, 2, 1, 0.5))
KIND: Final = "store faults"

# Answers to a put that leave its outcome open, and to a get that must be asked for again.
PUTS: Final = (
    s3_faults.REFUSED_409, s3_faults.REFUSED_500, s3_faults.REFUSED_503, s3_faults.LOST_ANSWER,
    s3_faults.STORED_503,
)  # fmt: skip
GETS: Final = (
    s3_faults.REFUSED_500, s3_faults.REFUSED_503, s3_faults.RESET_MID_BODY, s3_faults.TRUNCATED,
    s3_faults.FLIPPED_BIT, s3_faults.SLOW_DRIP,
)  # fmt: skip
CREATED: Final = {
    "claim": keys.claim(1, 0),
    "manifest": keys.contribution(2, 1),
    "roster": keys.roster(3),
    "result": keys.result(1),
}


def store_faults() -> Iterator[Schedule]:
    for what, setting, (name, key) in product(PUTS, SETTINGS, CREATED.items()):
        yield _schedule(f"PUT: {what}", name, setting, Trigger("PUT", key, what, times=2))
    for what, setting in product(PUTS[1:], SETTINGS):  # 409 is an answer to create-only puts
        yield _schedule(f"PUT: {what}", "payload", setting, Trigger("PUT", keys.payload(2, 1), what, times=2))
    for what, setting in product(GETS, SETTINGS):
        yield _schedule(f"GET: {what}", "payload", setting, Trigger("GET", keys.payload(2, 1), what, times=2))
    for what, setting, key in product(GETS, SETTINGS, (keys.contribution(2, 1), keys.roster(2))):
        yield _schedule(f"GET of the log: {what}", "log", setting, Trigger("GET", key, what))
    for name, key in {
        "PUT of a manifest": keys.contribution(2, 1),
        "PUT of a payload": keys.payload(2, 1),
    }.items():
        trigger = Trigger("PUT", key, s3_faults.DENIED)
        yield Schedule(KIND, f"denied: {name}", SETTINGS[0], 1, (trigger,), expect="AccessDenied")
    trigger = Trigger("GET", keys.payload(2, 1), s3_faults.DENIED)
    yield Schedule(KIND, "denied: GET of a payload", SETTINGS[1], 0, (trigger,), expect="AccessDenied")


def _schedule(point: str, _name: str, setting: Setting, *triggers: Trigger) -> Schedule:
    return Schedule(KIND, point, setting, 1, triggers)
