"""Time that passes only when somebody sleeps, and does things at given moments."""

import random
from collections.abc import Callable

from trainer.rendezvous.waiting import Clock


class FakeTime:
    """A clock at `now_s`; `at` schedules what the rest of the world does meanwhile."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleeps: list[float] = []
        self._scheduled: list[tuple[float, Callable[[], object]]] = []

    def at(self, moment_s: float, action: Callable[[], object]) -> None:
        self._scheduled.append((moment_s, action))
        self._scheduled.sort(key=lambda item: item[0])

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a wait that does not sleep spins"
        self.sleeps.append(seconds)
        end_s = self.now_s + seconds
        while self._scheduled and self._scheduled[0][0] <= end_s:
            self.now_s, action = self._scheduled.pop(0)
            action()
        self.now_s = end_s

    def clock(self) -> Clock:
        return Clock(now=lambda: self.now_s, sleep=self.sleep, jitter=random.Random(0))
