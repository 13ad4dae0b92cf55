"""Play all schedules and say how many ended as they must.

    python -m tests.chaos [--only TEXT] [--jobs N] [--keep FOLDER]

Exit code 0: every run ended as its schedule says, everything that was to happen happened, and
the planted bugs were caught. The last line counts.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Before torch is imported: no threads in the process that forks.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

from rich.console import Console
from rich.table import Table

from tests.chaos import replica
from tests.chaos.scene import Outcome, play
from tests.chaos.schedule import AGREE, EQUAL, Schedule
from tests.chaos.schedules import all_schedules

Played = tuple[Schedule, Outcome]


@dataclass
class Pool:
    """Scenes side by side, each in a process."""

    jobs: int
    folder: Path

    def play(self, schedules: list[Schedule], said: Callable[[Schedule, Outcome], None]) -> list[Outcome]:
        running: dict[int, int] = {}
        outcomes: dict[int, Outcome] = {}
        waiting = list(range(len(schedules)))[::-1]
        while waiting or running:
            while waiting and len(running) < self.jobs:
                index = waiting.pop()
                running[self._fork(schedules[index], index)] = index
            process, status = os.wait()
            index = running.pop(process)
            outcomes[index] = self._outcome(index, status)
            said(schedules[index], outcomes[index])
        return [outcomes[index] for index in range(len(schedules))]

    def _fork(self, schedule: Schedule, index: int) -> int:
        process = replica.fork()
        if process:
            return process
        try:
            play(schedule, self.folder / f"{index:04d}", self.folder / f"{index:04d}.json")
            os._exit(0)
        except BaseException:  # noqa: BLE001 - seen by the parent as a scene without an outcome
            import traceback

            traceback.print_exc()
            os._exit(1)

    def _outcome(self, index: int, status: int) -> Outcome:
        file = self.folder / f"{index:04d}.json"
        if not file.exists():
            return Outcome("lost", f"the scene itself failed with status {status}")
        outcome = Outcome(**json.loads(file.read_text()))
        file.unlink()
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--only", default="", help="play what has this text in its kind, point or setting")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="where folders of failed schedules stay")
    given = parser.parse_args()
    replica.warm()
    chosen = [s for s in all_schedules() if given.only in f"{s.kind}: {s.point}: {s.setting}"]
    print(len(chosen), "schedules", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = given.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        settings = sorted({s.setting for s in chosen if s.expect == EQUAL}, key=str)
        quiet = [Schedule("undisturbed", "-", setting, expect=AGREE) for setting in settings]
        undisturbed = _pool(given.jobs, root / "undisturbed").play(quiet, _say)
        hashes = {q.setting: o.weights_hash for q, o in zip(quiet, undisturbed, strict=True)}
        outcomes = _pool(given.jobs, root / "disturbed").play(chosen, _say)
    for schedule, outcome in zip(chosen, outcomes, strict=True):
        if outcome.verdict == "good" and schedule.expect == EQUAL:
            if outcome.weights_hash != hashes[schedule.setting]:
                outcome.verdict, outcome.why = "diverged", "not the undisturbed run's weights"
                _say(schedule, outcome)
    _table(list(zip(quiet + chosen, undisturbed + outcomes, strict=True)))
    count: dict[str, int] = defaultdict(int)
    for outcome in undisturbed + outcomes:
        count[outcome.verdict] += 1
    print(
        f"chaos: {len(chosen)} schedules, {count['diverged']} diverged, {count['hung']} hung, "
        f"{count['lost']} lost" + (f", {count['unfired']} did not fire" if count["unfired"] else "")
    )
    return 0 if count["good"] == len(undisturbed) + len(chosen) else 1


def _pool(jobs: int, folder: Path) -> Pool:
    folder.mkdir()
    return Pool(jobs, folder)


def _say(schedule: Schedule, outcome: Outcome) -> None:
    if outcome.verdict != "good":
        print(f"{outcome.verdict}: {schedule.kind}: {schedule.point}: {schedule}: {outcome.why}", flush=True)


def _table(played: list[Played]) -> None:
    table = Table("kind", "point", "schedules", "good", "median s", "slowest s", "processes", "requests")
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for schedule, outcome in played:
        rows[schedule.kind, schedule.point].append(outcome)
    for (kind, point), outcomes in rows.items():
        walls = sorted(outcome.wall_s for outcome in outcomes)
        good = sum(outcome.verdict == "good" for outcome in outcomes)
        table.add_row(
            kind, point, str(len(outcomes)), str(good), f"{walls[len(walls) // 2]:.1f}", f"{walls[-1]:.1f}",
            str(sum(o.lives for o in outcomes)), str(sum(o.requests for o in outcomes)),
        )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    sys.exit(main())
