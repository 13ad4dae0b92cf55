"""One schedule, played: a store, a gang of replicas, relaunches as the state machine makes them.

Runs in a process of its own that starts no thread, since it forks. What it finds goes to a file.
"""

import json
import multiprocessing
import os
import shutil
import signal
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

from tests.chaos import replica, server
from tests.chaos.damage import DAMAGE, DAMAGE_ALL
from tests.chaos.disturbances import FIRED
from tests.chaos.schedule import AGREE, EQUAL, Schedule
from trainer import failures
from trainer.layout import CHECKPOINT_FOLDER, RunLayout
from trainer.run_spec import parse

MAX_RELAUNCHES: Final = 3
LOOK_EVERY_S: Final = 0.005
RUN_ID: Final = "chaos"


@dataclass
class Life:
    """One process of a rank, and how it ended."""

    rank: int
    number: int
    process: int
    base: str
    ended: str | None = None  # "finished", "killed", or the failure text


GOOD: Final = "good"
DIVERGED: Final = "diverged"  # ranks ended with other weights than they should
HUNG: Final = "hung"  # past its stated time
LOST: Final = "lost"  # ended without the result, or without the one error, that it should have
UNFIRED: Final = "unfired"  # what was to happen did not: the schedule proves nothing


@dataclass
class Outcome:
    """How a schedule ended."""

    verdict: str
    why: str = ""
    wall_s: float = 0.0
    weights_hash: str = ""
    lives: int = 0
    requests: int = 0
    expect: str = AGREE

    def beside(self, undisturbed_hash: str) -> "Outcome":
        """This outcome, diverged where its weights should be the undisturbed run's and are not."""
        if self.verdict == GOOD and self.expect == EQUAL and self.weights_hash != undisturbed_hash:
            return replace(self, verdict=DIVERGED, why="all agree, but not on the undisturbed run's weights")
        return self


@dataclass
class Scene:
    """The processes of one schedule. Use as a context: on leaving, none is left."""

    schedule: Schedule
    folder: Path
    lives: list[Life] = field(default_factory=list)
    twin_due: bool = False
    damaged: bool = False
    hung: bool = False

    def __enter__(self) -> "Scene":
        setting, keys = self.schedule.setting, RunLayout(RUN_ID)
        spec = parse(
            {
                "n_replicas": setting.ranks,
                "total_steps": setting.total_steps,
                "sync_every": setting.sync_every,
                "fragments": setting.fragments,
                "fragment_sync_delay": setting.delay,
                "fragment_update_alpha": setting.alpha,
                "wire_dtype": setting.wire,
                "mean_dtype": setting.mean,
                "trainer_module": "tests.chaos.trainer",
                "trainer_fn": setting.inner,
                "timeout_s": self.schedule.timeout_s,
                "startup_timeout_s": max(60.0, self.schedule.timeout_s),
                "round_timeout_s": max(60.0, self.schedule.timeout_s),
                "poll_interval_s": 0.01,
            }
        )
        document = {"run_id": RUN_ID, "launch": "chaos", "parameters": spec.model_dump()}
        objects = {keys.run_file: json.dumps(document).encode()}
        self._pipe, theirs = multiprocessing.Pipe()
        self._server = replica.fork()
        if self._server == 0:
            _serve(self.schedule, objects, theirs)
        self._address = self._pipe.recv()
        self._keys = keys
        return self

    def __exit__(self, *_: object) -> None:
        for process in [life.process for life in self.lives if life.ended is None] + [self._server]:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def play(self) -> Outcome:
        """Run to the end, or to the schedule's limit."""
        began_s = time.monotonic()
        for rank in range(self.schedule.setting.ranks):
            self._launch(rank)
        while any(life.ended is None for life in self.lives):
            self._look()
            if time.monotonic() - began_s > self.schedule.limit_s:
                self.hung = True
                break
            time.sleep(LOOK_EVERY_S)
        self._pipe.send("end")
        found = self._pipe.recv()
        outcome = self._judge(found)
        outcome.wall_s, outcome.lives = time.monotonic() - began_s, len(self.lives)
        outcome.requests, outcome.expect = found["requests"], self.schedule.expect
        return outcome

    def _launch(self, rank: int, *, twin: bool = False) -> None:
        """Start a process of a rank where its last one was: of that folder, only checkpoints are left."""
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
        process = replica.fork()
        if process == 0:
            replica.run(self.schedule, rank, len(earlier), self._address, self._keys.run_file, base)
        self.lives.append(Life(rank, len(earlier), process, str(base)))

    def _look(self) -> None:
        for life in [life for life in self.lives if life.ended is None]:
            process, status = os.waitpid(life.process, os.WNOHANG | os.WUNTRACED)
            if process == 0:
                continue
            if os.WIFSTOPPED(status):
                if self.schedule.twin and not self.twin_due:
                    self.twin_due = True
                    self._launch(life.rank)
                continue
            life.ended, relaunch = _how(life, status)
            newest = max(other.number for other in self.lives if other.rank == life.rank)
            if relaunch and newest == life.number and life.number < MAX_RELAUNCHES:
                self._launch(life.rank)
            elif life.ended != "finished" and newest == life.number:
                self._abort(life)

    def _abort(self, life: Life) -> None:
        """As the state machine: the run's abort marker, so that the others leave."""
        body = json.dumps({"run_id": RUN_ID, "by": "the scene", "reason": life.ended}).encode()
        url = f"{self._address}/bucket/{self._keys.abort}"
        request = urllib.request.Request(url, body, {"If-None-Match": "*"}, method="PUT")  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - our own server
        except urllib.error.HTTPError as error:
            if error.code != 412:  # somebody else gave the run up first
                raise

    def _judge(self, found: dict[str, Any]) -> Outcome:
        schedule, ends = self.schedule, self._ends()
        if self.hung:
            return Outcome(HUNG, f"after {schedule.limit_s:g} s: {ends}")
        if unfired := self._unfired(found["fired"]):
            return Outcome(UNFIRED, f"{unfired}; {ends}")
        for rank, error in schedule.expect_ended:
            if not any(life.rank == rank and _name(life) == error for life in self.lives):
                return Outcome(LOST, f"no process of rank {rank} ended as {error}: {ends}")
        if schedule.expect not in (EQUAL, AGREE):
            return self._judge_error(ends)
        if "ReplicasDiverged" in (names := {_name(life) for life in self.lives}):
            return Outcome(DIVERGED, ends)
        # That a relaunch heals an error does not make it one that should have come about.
        if unexpected := names - {"finished", "killed"} - {error for _, error in schedule.expect_ended}:
            return Outcome(LOST, f"ended as {sorted(unexpected)}: {ends}")
        ranks = range(schedule.setting.ranks)
        results = [server.read(found["objects"], self._keys.result(rank)) for rank in ranks]
        last = [[life for life in self.lives if life.rank == rank] for rank in ranks]
        if None in results or not all(any(life.ended == "finished" for life in lives) for lives in last):
            return Outcome(LOST, ends)
        hashes = [result["weights_hash"] for result in results if result is not None]
        if len(set(hashes)) > 1:
            return Outcome(DIVERGED, f"ranks ended with {[h[:8] for h in hashes]}: {ends}")
        rounds = [result["rounds"] for result in results if result is not None]
        if rounds != [schedule.setting.rounds] * len(ranks):
            return Outcome(LOST, f"rounds {rounds}: {ends}")
        return Outcome(GOOD, weights_hash=hashes[0])

    def _judge_error(self, ends: str) -> Outcome:
        """All must have ended, one with the expected error first, the others with it or for a lost peer."""
        names = {_name(life) for life in self.lives if life.ended not in ("killed", "finished")}
        if self.schedule.expect in names and names <= {self.schedule.expect, "PeerLost"}:
            return Outcome(GOOD)
        return Outcome(LOST, f"{self.schedule.expect} expected: {ends}")

    def _unfired(self, fired: list[int]) -> str:
        """What should have happened and has not."""
        schedule = self.schedule
        missing = [t.key for t, times in zip(schedule.triggers, fired, strict=True) if times < t.times]
        bases = [Path(life.base) for life in self.lives if life.rank == schedule.rank]
        if schedule.local and not (bases[0] / FIRED).exists():
            missing.append(schedule.local)
        if schedule.damage and not self.damaged:
            missing.append(schedule.damage)
        if schedule.twin and not self.twin_due:
            missing.append("a second process")
        return f"did not fire: {missing}" if missing else ""

    def _ends(self) -> str:
        return "; ".join(f"rank {life.rank} life {life.number}: {life.ended}" for life in self.lives)


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


def _name(life: Life) -> str:
    return str(life.ended).split(":")[0]


def _vanishing(folder: str, names: list[str]) -> list[str]:
    """A live twin may be deleting old checkpoints while they are copied, as SageMaker's sync sees it."""
    return [name for name in names if not (Path(folder) / name).exists()]


def _serve(schedule: Schedule, objects: dict[str, bytes], pipe: Pipe) -> None:
    try:
        server.serve(schedule.triggers, objects, pipe)
    finally:
        os._exit(0)


def play(schedule: Schedule, folder: Path, out: Path) -> None:
    """Play a schedule in this process, in a folder of its own, and write its outcome to `out`."""
    folder.mkdir()
    with Scene(schedule, folder) as scene:
        outcome = scene.play()
    out.write_text(json.dumps(asdict(outcome)))
    if outcome.verdict == GOOD:
        shutil.rmtree(folder)
