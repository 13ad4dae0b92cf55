"""What happens inside one process: where no request to the store marks the moment.

Each is installed in the first life of the schedule's rank and leaves a file where it has done its
work, so that one that never came about is noticed.
"""

import datetime
import errno
import os
import re
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


def killed_at_file(event: str, path: str, occurrence: int = 1) -> Callable[[Schedule, Path], None]:
    """SIGKILL just before an audit event of Python on a file, while a checkpoint is written.

    `path` is a regular expression in which ROUND stands for the schedule's round.
    """

    def install(schedule: Schedule, base: Path) -> None:
        pattern, seen = path.replace("ROUND", f"round_{schedule.local_round:06d}"), [0]

        def hook(happening: str, arguments: tuple[object, ...]) -> None:
            if happening == event and re.search(pattern, str(arguments[0])):
                seen[0] += 1
                if seen[0] == occurrence:
                    _fired(base)
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return install


def disk_full(schedule: Schedule, base: Path) -> None:
    """No space is left for a checkpoint of this round or a later one."""
    first = schedule.local_round

    def hook(happening: str, arguments: tuple[object, ...]) -> None:
        if happening not in ("open", "os.mkdir"):
            return
        found = re.search(r"/checkpoints/.*round_(\d+)", str(arguments[0]))
        if found and int(found[1]) >= first:
            writes = happening == "os.mkdir" or (isinstance(arguments[2], int) and arguments[2] & os.O_CREAT)
            if writes:
                _fired(base)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    sys.addaudithook(hook)


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
    "mid-checkpoint: between its files": killed_at_file("open", r"unfinished.*ROUND.*/state\.json$"),
    "mid-checkpoint: before its index": killed_at_file("open", r"unfinished.*ROUND.*/index\.json$"),
    "mid-checkpoint: before its name": killed_at_file("os.rename", r"unfinished.*ROUND"),
    "mid-checkpoint: while the oldest one goes": killed_at_file("os.remove", r"(json|safetensors)$", 2),
    "disk full": disk_full,
    "clock hours ahead": skewed_clock(7),
    "clock hours behind": skewed_clock(-7),
}
