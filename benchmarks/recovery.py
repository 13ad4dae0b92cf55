"""What does a lost replica cost, when its rank alone is started again and the others wait for it?

    python -m benchmarks.recovery [--step-ms 100] [--rounds 10]

Replicas that sleep for each inner step, so that time is theirs and not this machine's, on a store on
loopback. Every `EVERY` rounds one is killed in the middle of its inner steps and comes back after a
start-up of one round's time, from its checkpoint. In the same run: nobody is killed; and, as jobs that
know no recovery do it, all are killed with it and start again from their checkpoints.

`goodput` is useful inner steps a second against the undisturbed run. Of `EVERY` rounds' time T the one
in which a replica dies at the share x of its inner steps takes x + 1 (start-up) + 1 (its inner steps
again) instead of 1, and since every round needs every rank nobody can do better while peers wait:
`possible` = EVERY / (EVERY + 1 + x). `of_possible` is how much of that is reached.

Both ways wait for the same start-up, so their goodput differs little; what differs is what is thrown
away (`lost_inner_steps`, all replicas together) and how many start-ups it takes.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# Before torch is imported: no threads in the process that forks.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import torch

from tests.chaos import forking, replica
from tests.chaos.server import RunServer
from tests.chaos.trainer import Data, Net
from trainer.diloco import make_diloco_outer_loop
from trainer.layout import CHECKPOINT_FOLDER
from trainer.rendezvous.manager import ObjectStoreManager

REPLICAS: Final = 8
EVERY: Final = 5  # rounds between two losses
SYNC_EVERY: Final = 16
DIES_AT: Final = 0.25  # the share x of a round's inner steps
LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Pace:
    """What a replica process knows of this benchmark; set before it becomes a replica."""

    step_s: float = 0.0
    dies_at_step: int | None = None
    times: Path = Path()  # this process' own notes


pace = Pace()


def paced(
    *, manager: ObjectStoreManager, rank: int, world_size: int, model_dir: Path, **run: Any
) -> dict[str, Any]:
    """The trainer function: the toy of the chaos schedules, at a steady pace."""
    torch.manual_seed(run["seed"])
    model, data = Net(), Data(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loop = make_diloco_outer_loop(
        manager=manager, model=model, inner_optimizer=optimizer, sync_every=run["sync_every"],
        stateful={"data": data},
    )  # fmt: skip
    first = loop.first_inner_step
    _note(began_s=time.monotonic(), first=first)
    with loop:
        for step in range(first, run["total_steps"]):
            if step == pace.dies_at_step:
                _note(died_s=time.monotonic(), died_at=step)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(pace.step_s)
            optimizer.zero_grad()
            x = data.next()
            ((model(x) - x[:, :3].sin()) ** 2).mean().backward()
            optimizer.step()
            _note(step=step)
    _note(ended_s=time.monotonic())
    return {}


def _note(**said: float) -> None:
    with pace.times.open("a") as file:
        file.write(json.dumps(said) + "\n")


@dataclass
class Gang:
    """The replicas of one run, and their supervisor."""

    server: RunServer
    folder: Path
    step_s: float
    startup_s: float
    deaths: dict[int, int]  # rank: the inner step before which its first life ends
    all_restart: bool
    processes: dict[int, int] = field(default_factory=dict)  # process: rank
    lives: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        """To the end. Raises RuntimeError where a replica ends otherwise than it should."""
        try:
            for rank in range(REPLICAS):
                self._start(rank)
            deadline_s = time.monotonic() + LIMIT_S
            while self.processes:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process in self.processes:
                    self._ended(self.processes.pop(process), status)
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"not over after {LIMIT_S:g} s; logs: {self.folder}")
                time.sleep(0.002)
        finally:
            self._kill_all()

    def _ended(self, rank: int, status: int) -> None:
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return
        if not (os.WIFSIGNALED(status) and rank in self.deaths):
            raise RuntimeError(f"rank {rank} ended with status {status}; see its log in {self.folder}")
        del self.deaths[rank]
        ranks = [rank]
        if self.all_restart:
            ranks += list(self.processes.values())
            self._kill_all()
        time.sleep(self.startup_s)  # an instance is found, an image pulled, torch imported
        for again in ranks:
            self._start(again)

    def _start(self, rank: int) -> None:
        life = self.lives[rank] = self.lives.get(rank, -1) + 1
        base = self.folder / f"rank_{rank}_life_{life}"
        base.mkdir(parents=True)
        saved = self.folder / f"rank_{rank}_life_{life - 1}" / CHECKPOINT_FOLDER
        if saved.exists():
            shutil.copytree(saved, base / CHECKPOINT_FOLDER)

        def prepare() -> None:
            global pace
            pace = Pace(self.step_s, self.deaths.get(rank), base / "times")
            import benchmarks.recovery as imported  # as the entrypoint finds it; this here is __main__

            imported.pace = pace

        process = forking.fork()
        if process == 0:
            replica.become(rank, base, self.server.address, self.server.keys.run_file, prepare)
        self.processes[process] = rank

    def _kill_all(self) -> None:
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        self.processes.clear()


def measure(
    folder: Path, rounds: int, step_s: float, startup_s: float, deaths: dict[int, int], *, all_restart: bool
) -> dict[str, Any]:
    """One run: its time from the first inner step to the end, what it lost, the hash of its weights."""
    parameters = {
        "n_replicas": REPLICAS, "total_steps": rounds * SYNC_EVERY, "sync_every": SYNC_EVERY,
        "trainer_module": "benchmarks.recovery", "trainer_fn": "paced", "poll_interval_s": 0.02,
    }  # fmt: skip
    with RunServer(parameters) as server:
        Gang(server, folder, step_s, startup_s, dict(deaths), all_restart).run()
        found = server.look()
    results = [found.read(server.keys.result(rank)) for rank in range(REPLICAS)]
    notes = [[json.loads(line) for line in path.open()] for path in sorted(folder.glob("*/times"))]
    flat = [note for life in notes for note in life]
    done = sum("step" in note for note in flat)
    began_s = max(life[0]["began_s"] for life in notes if life[0]["first"] == 0)
    return {
        "wall_s": max(note["ended_s"] for note in flat if "ended_s" in note) - began_s,
        "lost_inner_steps": done - REPLICAS * rounds * SYNC_EVERY,
        "startups": len(notes) - REPLICAS,
        "hashes": {result and result["weights_hash"] for result in results},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    forking.warm()
    step_s, rounds = given.step_ms / 1e3, given.rounds
    into = round(DIES_AT * SYNC_EVERY)
    # In the third round of every five, each time another rank.
    deaths = {1 + n: (EVERY * n + 2) * SYNC_EVERY + into for n in range(rounds // EVERY)}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        quiet = measure(root / "quiet", rounds, step_s, 0.0, {}, all_restart=False)
        round_s = quiet["wall_s"] / rounds
        alone = measure(root / "alone", rounds, step_s, round_s, deaths, all_restart=False)
        everything = measure(root / "all", rounds, step_s, round_s, deaths, all_restart=True)
    possible = EVERY / (EVERY + 1 + into / SYNC_EVERY)
    goodput = quiet["wall_s"] / alone["wall_s"]
    found = {
        "benchmark": "recovery",
        "replicas": REPLICAS,
        "rounds": rounds,
        "killed": len(deaths),
        "round_s": round(round_s, 3),
        "goodput": round(goodput, 3),
        "possible": round(possible, 3),
        "of_possible": round(goodput / possible, 3),
        "lost_inner_steps": alone["lost_inner_steps"],
        "startups": alone["startups"],
        "restart_everything": {
            "goodput": round(quiet["wall_s"] / everything["wall_s"], 3),
            "lost_inner_steps": everything["lost_inner_steps"],
            "startups": everything["startups"],
        },
        "same_weights": len(quiet["hashes"] | alone["hashes"] | everything["hashes"]) == 1,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
