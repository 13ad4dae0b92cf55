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
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

# Before torch is imported: no threads in the process that forks.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

from rich.console import Console
from rich.table import Table

from tests.chaos import forking
from tests.chaos.judging import DIVERGED, GOOD, HUNG, LOST, UNFIRED, Outcome
from tests.chaos.planted import planted_schedules
from tests.chaos.scene import play
from tests.chaos.schedule import AGREE, Schedule, Setting
from tests.chaos.schedules import all_schedules

Played = tuple[Schedule, Outcome]


@dataclass
class Pool:
    """Scenes side by side, each in a process."""

    jobs: int
    root: Path

    def play(self, name: str, schedules: list[Schedule]) -> list[Outcome]:
        """The outcomes of schedules, in their order; folders are made below `root`/`name`."""
        self.folder = self.root / name
        self.folder.mkdir(parents=True)
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
            if len(outcomes) % 25 == 0:
                bad = sum(outcome.verdict != GOOD for outcome in outcomes.values())
                print(
                    f"{name}: {len(outcomes)} of {len(schedules)}, {bad} not good",
                    file=sys.stderr,
                    flush=True,
                )
        return [outcomes[index] for index in range(len(schedules))]

    def _fork(self, schedule: Schedule, index: int) -> int:
        process = forking.fork()
        if process:
            return process
        try:
            play(schedule, self.folder / f"{index:04d}", self.folder / f"{index:04d}.json")
            os._exit(0)
        except BaseException:  # noqa: BLE001 - seen by the parent as a scene without an outcome
            traceback.print_exc()
            os._exit(1)

    def _outcome(self, index: int, status: int) -> Outcome:
        file = self.folder / f"{index:04d}.json"
        if not file.exists():
            return Outcome(UNFIRED, f"the scene itself failed with status {status}")
        outcome = Outcome(**json.loads(file.read_text()))
        file.unlink()
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="play what has this text in its description")
    parser.add_argument("--jobs", type=int, default=4, help="schedules at a time")
    parser.add_argument("--keep", type=Path, help="where the folders of failed schedules stay")
    given = parser.parse_args()
    forking.warm()
    chosen = [schedule for schedule in all_schedules() if given.only in str(schedule)]
    bugs = [schedule for schedule in planted_schedules() if given.only in str(schedule)]
    with tempfile.TemporaryDirectory() as scratch:
        pool = Pool(given.jobs, given.keep or Path(scratch))
        quiet = [Schedule("undisturbed", "-", setting, expect=AGREE) for setting in _settings(chosen + bugs)]
        undisturbed = pool.play("undisturbed", quiet)
        hashes = {q.setting: o.weights_hash for q, o in zip(quiet, undisturbed, strict=True)}
        if any(outcome.verdict != GOOD for outcome in undisturbed) or len(set(hashes.values())) < len(hashes):
            print(f"undisturbed runs must all be good, and differ where their settings do: {undisturbed}")
            return 1
        outcomes = [o.beside(hashes[s.setting]) for s, o in _both(chosen, pool.play("disturbed", chosen))]
        planted = [o.beside(hashes[s.setting]) for s, o in _both(bugs, pool.play("planted", bugs))]
    played = _both(quiet, undisturbed) + _both(chosen, outcomes)
    failed = [(schedule, outcome) for schedule, outcome in played if outcome.verdict != GOOD]
    missed = [schedule for schedule, outcome in _both(bugs, planted) if outcome.verdict in (GOOD, UNFIRED)]
    for schedule, outcome in failed:
        print(f"{outcome.verdict}: {schedule}: {outcome.why}")
    _table(played)
    for schedule, outcome in _both(bugs, planted):
        word = "MISSED" if schedule in missed else "caught"
        print(f"planted bug {word}: {schedule.bug} ({outcome.verdict}: {outcome.why[:120]})")
    count = Counter(outcome.verdict for _, outcome in failed)
    lost = f"{count[DIVERGED]} diverged, {count[HUNG]} hung, {count[LOST]} lost"
    more = f", {count[UNFIRED]} did not fire" if count[UNFIRED] else ""
    more += f", {len(missed)} planted bugs missed" if missed else ""
    print(f"chaos: {len(chosen)} schedules, {lost}{more}")
    return 1 if failed or missed else 0


def _settings(schedules: list[Schedule]) -> list[Setting]:
    return sorted({schedule.setting for schedule in schedules}, key=str)


def _both(schedules: list[Schedule], outcomes: list[Outcome]) -> list[Played]:
    return list(zip(schedules, outcomes, strict=True))


def _table(played: list[Played]) -> None:
    table = Table("kind", "point", "schedules", "good", "median s", "slowest s", "processes", "requests")
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for schedule, outcome in played:
        rows[schedule.kind, schedule.point].append(outcome)
    for (kind, point), outcomes in rows.items():
        walls = sorted(outcome.wall_s for outcome in outcomes)
        good = sum(outcome.verdict == GOOD for outcome in outcomes)
        table.add_row(
            kind, point, str(len(outcomes)), str(good), f"{walls[len(walls) // 2]:.1f}", f"{walls[-1]:.1f}",
            str(sum(o.lives for o in outcomes)), str(sum(o.requests for o in outcomes)),
        )  # fmt: skip
    Console(width=130).print(table)


if __name__ == "__main__":
    sys.exit(main())
