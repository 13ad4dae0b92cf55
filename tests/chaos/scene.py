"""One schedule, played: a store, a gang of replicas, relaunches as the state machine makes them.

Runs in a process of its own that starts no thread, since it forks. What it finds goes to a file.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import disturbances, forking, planted, replica, trainer
from tests.chaos.damage import DAMAGE, DAMAGE_ALL
from tests.chaos.judging import GOOD, Judge, Life, Outcome
from tests.chaos.schedule import Schedule
from tests.chaos.server import RunServer
from trainer import failures
from trainer.layout import CHECKPOINT_FOLDER
from trainer.rendezvous import geometry, sharded
from trainer.rendezvous.wire import BLOCK

MAX_RELAUNCHES: Final = 3
LOOK_EVERY_S: Final = 0.005
TAKE_OVER_S: Final = 0.4  # in place of sharded.py's: long enough that an owner comes first as a rule


@dataclass
class Scene:
    """The processes of one schedule. Use as a context: on leaving, none is left."""

    schedule: Schedule
    folder: Path
    server: RunServer
    lives: list[Life] = field(default_factory=list)
    twin: bool = False
    damaged: bool = False

    def __enter__(self) -> "Scene":
        return self

    def __exit__(self, *_: object) -> None:
        for life in [life for life in self.lives if life.ended is None]:
            os.kill(life.process, signal.SIGKILL)
            os.waitpid(life.process, 0)

    def play(self) -> Outcome:
        """Run to the end, or to the schedule's limit."""
        began_s, hung = time.monotonic(), False
        for rank in range(self.schedule.setting.ranks):
            self._launch(rank)
        while not hung and any(life.ended is None for life in self.lives):
            self._look()
            hung = time.monotonic() - began_s > self.schedule.limit_s
            time.sleep(LOOK_EVERY_S)
        found = self.server.look()
        judge = Judge(self.schedule, self.lives, found, self.server.keys, hung, self.twin, self.damaged)
        outcome = judge.outcome()
        outcome.wall_s, outcome.lives = time.monotonic() - began_s, len(self.lives)
        outcome.requests, outcome.expect = found.requests, self.schedule.expect
        return outcome

    def _launch(self, rank: int) -> None:
        """Start a process of a rank as SageMaker would: of its last folder, only checkpoints are left."""
        earlier = [life for life in self.lives if life.rank == rank]
        base = self.folder / f"rank_{rank}_life_{len(earlier)}"
        base.mkdir()
        if earlier:
            saved = Path(earlier[-1].base) / CHECKPOINT_FOLDER
            if saved.exists():
                shutil.copytree(saved, base / CHECKPOINT_FOLDER, ignore=_vanishing)
            if self.schedule.damage and rank == self.schedule.rank and len(earlier) == 1:
                (DAMAGE | DAMAGE_ALL)[self.schedule.damage](base / CHECKPOINT_FOLDER)
                self.damaged = True
        process = forking.fork()
        if process == 0:
            prepare = _preparing(self.schedule, rank, len(earlier), base)
            replica.become(rank, base, self.server.address, self.server.keys.run_file, prepare)
        self.lives.append(Life(rank, len(earlier), process, str(base)))

    def _look(self) -> None:
        for life in [life for life in self.lives if life.ended is None]:
            process, status = os.waitpid(life.process, os.WNOHANG | os.WUNTRACED)
            if process == 0:
                continue
            if os.WIFSTOPPED(status):
                if self.schedule.twin and not self.twin:
                    self.twin = True
                    self._launch(life.rank)
                continue
            life.ended, relaunch = _how(life, status)
            relaunch = relaunch or (self.schedule.spot and life.name == "Stopped")
            newest = max(other.number for other in self.lives if other.rank == life.rank)
            if relaunch and newest == life.number and life.number < MAX_RELAUNCHES:
                self._launch(life.rank)
            elif life.ended != "finished" and newest == life.number:
                self.server.abort(life.ended)


def parameters(schedule: Schedule) -> dict[str, Any]:
    """The run parameters of a schedule."""
    setting = schedule.setting
    return {
        "n_replicas": setting.ranks,
        "total_steps": setting.total_steps,
        "sync_every": setting.sync_every,
        "fragments": setting.fragments,
        "fragment_sync_delay": setting.delay,
        "fragment_update_alpha": setting.alpha,
        "wire_dtype": setting.wire,
        "mean_dtype": setting.mean,
        "trainer_module": trainer.__name__,
        "trainer_fn": setting.inner,
        "timeout_s": schedule.timeout_s,
        "startup_timeout_s": 60.0,
        "round_timeout_s": 60.0,
        "poll_interval_s": 0.01,
    }


def _preparing(schedule: Schedule, rank: int, life: int, base: Path) -> Callable[[], None]:
    """What is changed in a replica's process before it starts."""

    def prepare() -> None:
        if schedule.sharded:
            geometry.SHARD_FROM_ELEMENTS = 0
            geometry.CHUNK_ELEMENTS = BLOCK
            sharded.TAKE_OVER_S = TAKE_OVER_S
        if schedule.bug is not None:
            planted.BUGS[schedule.bug]()
        if schedule.local is not None and rank == schedule.rank and life < schedule.local_lives:
            disturbances.LOCAL[schedule.local](schedule, base)

    return prepare


def _how(life: Life, status: int) -> tuple[str, bool]:
    """How a process ended, and whether the state machine would start its rank again."""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return ("killed" if name == "SIGKILL" else f"Signal: {name}"), True
    code, words = os.WEXITSTATUS(status), Path(life.base) / "output" / "failure"
    if code == 0 and not words.exists():
        return "finished", False
    text = words.read_text().strip() if words.exists() else f"Unexplained: exit code {code}"
    endings = [ending for ending in failures.ENDINGS.values() if ending.exit_code == code]
    return text, (endings[0].relaunch if endings else True)


def _vanishing(folder: str, names: list[str]) -> list[str]:
    """A live twin may be deleting old checkpoints while they are copied, as SageMaker's sync sees it."""
    return [name for name in names if not (Path(folder) / name).exists()]


def play(schedule: Schedule, folder: Path, out: Path) -> None:
    """Play a schedule in this process, in a folder of its own, and write its outcome to `out`."""
    folder.mkdir()
    with (
        RunServer(parameters(schedule), schedule.triggers) as server,
        Scene(schedule, folder, server) as scene,
    ):
        outcome = scene.play()
    out.write_text(json.dumps(asdict(outcome)))
    if outcome.verdict == GOOD:
        shutil.rmtree(folder)
