"""What happens inside one process: where no request to the store marks the moment.

Each is installed in the first life of the schedule's rank and leaves a file where it has done its
work, so that one that never came about is noticed.
"""

import datetime
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.chaos.schedule import Schedule
from trainer.outer_optimizer import OuterNesterov

FIRED: Final = "fired"  # the name of the file


def after_outer_step(schedule: Schedule, base: Path) -> None:
    """SIGKILL once the outer step of a round is done, before anything is kept of it."""
    step, done = OuterNesterov.step, [0]

    def last(self: OuterNesterov, closure: Callable[[], float] | None = None) -> None:
        step(self, closure)
        done[0] += 1
        if done[0] == schedule.local_round + 1:
            _fired(base)
            os.kill(os.getpid(), signal.SIGKILL)

    OuterNesterov.step = last  # type: ignore[method-assign]


def skewed_clock(hours: float) -> Callable[[Schedule, Path], None]:
    """The wall clock is hours off the others', and another hour further at each look."""

    def install(schedule: Schedule, base: Path) -> None:
        real_time, real_class, looks = time.time, datetime.datetime, [0]

        def skew_s() -> float:
            looks[0] += 1
            _fired(base)
            return 3600.0 * (hours + (looks[0] if hours > 0 else -looks[0]))

        class Skewed(real_class):  # type: ignore[misc, valid-type]
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
                return real_class.now(tz) + datetime.timedelta(seconds=skew_s())

        time.time = lambda: real_time() + skew_s()
        # By name in our own modules: obstore compares credentials' expiry with the class itself.
        for module in [found for name, found in sys.modules.items() if name.startswith("trainer")]:
            if vars(module).get("datetime") is real_class:
                module.datetime = Skewed  # type: ignore[attr-defined]

    return install


def _fired(base: Path) -> None:
    (base / FIRED).touch()


LOCAL: Final[dict[str, Callable[[Schedule, Path], None]]] = {
    "after the outer step": after_outer_step,
    "clock hours ahead": skewed_clock(7),
    "clock hours behind": skewed_clock(-7),
}
