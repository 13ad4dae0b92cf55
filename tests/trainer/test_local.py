"""Whole runs on this machine: real processes, ended by real signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file

from trainer import local
from trainer.layout import RunLayout
from trainer.rendezvous.object_store import open_store
from trainer.rendezvous.state_hash import weights_hash
from trainer.report import build_report

ROOT = Path(__file__).parents[2]
TOY = {"trainer_module": "tests.support.trainers", "trainer_fn": "toy", "poll_interval_s": 0.05}


class LocalRun:
    """`python -m trainer.local` in a process of its own, on a store below `folder`."""

    def __init__(
        self, folder: Path, *, store: str | None = None, run_id: str = "r", **parameters: Any
    ) -> None:
        file = folder / "params.json"
        file.write_text(json.dumps(parameters))
        self.store_uri = store or (folder / "store").as_uri()
        self.folder = folder / "runs" / run_id
        argv = [sys.executable, "-m", "trainer.local", str(file), "--store", self.store_uri]
        argv += ["--run-id", run_id, "--out", str(folder / "runs")]
        self.process = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str]:
        """Exit code and what it printed."""
        output, _ = self.process.communicate(timeout=200)
        return self.process.returncode, output

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def pids(self) -> list[int]:
        """The replicas' process ids, from their claims in the log."""
        store, keys = open_store(self.store_uri), RunLayout("r")
        claims = [json.loads(store.get(key)) for key in store.keys(keys.claims_prefix)]
        return [claim["pid"] for claim in sorted(claims, key=lambda claim: claim["rank"])]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something to happen, as long as the run lives."""
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[0]

    def contributed(self, rank: int) -> bool:
        return open_store(self.store_uri).find(RunLayout("r").contribution(0, rank)) is not None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., LocalRun]]:
    runs: list[LocalRun] = []

    def started(**parameters: Any) -> LocalRun:
        runs.append(LocalRun(tmp_path, **parameters))
        return runs[-1]

    yield started
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_the_smoke_run_trains_and_leaves_its_results(start: Callable[..., LocalRun]) -> None:
    run = start()
    code, output = run.end()
    assert code == 0, output
    report = run.report()
    assert report["status"] == "SUCCEEDED"
    assert report["last_loss"] < report["first_loss"]
    assert report["bigram_loss"] > 0
    assert [(r["rank"], r["status"], r["attempts"], r["rounds"]) for r in report["replicas"]] == [
        (0, "Completed", 1, 2), (1, "Completed", 1, 2),
    ]  # fmt: skip
    saved = weights_hash(load_file(run.folder / "model" / "model.safetensors").items())
    assert {r["weights_hash"] for r in report["replicas"]} == {saved}
    assert report["model_uri"] == (run.folder / "model").as_uri()
    with Image.open(run.folder / "loss.png") as plot:
        assert plot.size == (960, 540)
    assert "SUCCEEDED: all replicas hold the same weights" in output
    assert "rank 1: finished" in output and "rank 1: Completed" in output


def test_two_stores_and_two_runs_end_with_the_same_weights(
    start: Callable[..., LocalRun], s3_bucket: str
) -> None:
    hashes = []
    for store, run_id in ((None, "here"), (s3_bucket, "there")):
        run = start(store=store, run_id=run_id, n_replicas=2, seed=7, **TOY)
        assert run.end()[0] == 0
        hashes += [r["weights_hash"] for r in run.report()["replicas"]]
    assert len(set(hashes)) == 1


def test_a_killed_replica_ends_all_with_the_reason(start: Callable[..., LocalRun]) -> None:
    """Three of four wait for rank 3, which is killed before it contributes."""
    run = start(n_replicas=4, **TOY | {"trainer_fn": "slow_rank_3"})
    run.until(lambda: run.contributed(0) and len(run.pids()) == 4)
    os.kill(run.pids()[3], signal.SIGKILL)
    code, output = run.end()
    assert code == 1
    report = run.report()
    assert (report["status"], report["error"]) == ("FAILED", "ReplicaFailed")
    assert report["cause"] == "Killed: rank 3: the process was ended by SIGKILL"
    assert "Killed: rank 3" in output
    assert not any(alive(pid) for pid in run.pids())
    abort = json.loads(open_store(run.store_uri).get(RunLayout("r").abort))
    assert (abort["by"], abort["missing"]) == ("trainer.local", [3])


def test_a_replica_that_is_asked_to_stop_ends_all_too(start: Callable[..., LocalRun]) -> None:
    run = start(n_replicas=4, **TOY | {"trainer_fn": "slow_rank_3"})
    run.until(lambda: run.contributed(0) and len(run.pids()) == 4)
    os.kill(run.pids()[3], signal.SIGTERM)
    code, _ = run.end()
    assert code == 1
    assert run.report()["cause"] == "Stopped: rank 3: asked to stop, and did"
    assert run.report()["replicas"][3]["status"] == "Stopped"
    assert not any(alive(pid) for pid in run.pids())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_and_leaves_no_process(start: Callable[..., LocalRun], signum: int) -> None:
    run = start(n_replicas=4, **TOY | {"trainer_fn": "slow_rank_3"})
    run.until(lambda: run.contributed(0) and len(run.pids()) == 4)
    run.process.send_signal(signum)
    code, output = run.end()
    assert code == 130, output
    assert (run.report()["status"], run.report()["error"]) == ("ABORTED", "Interrupted")
    assert not any(alive(pid) for pid in run.pids())


def test_replicas_do_not_outlive_a_launcher_that_was_killed(start: Callable[..., LocalRun]) -> None:
    run = start(n_replicas=4, **TOY | {"trainer_fn": "slow_rank_3"})
    run.until(lambda: run.contributed(0) and len(run.pids()) == 4)
    pids = run.pids()
    run.process.kill()
    run.process.wait()
    while any(alive(pid) for pid in pids):  # the test's own time-out bounds this
        pass


def test_a_flipped_weight_ends_in_replicas_diverged(start: Callable[..., LocalRun]) -> None:
    run = start(n_replicas=2, **TOY | {"trainer_fn": "flipped"})
    code, output = run.end()
    assert code == 1
    report = run.report()
    assert (report["status"], report["error"]) == ("FAILED", "ReplicasDiverged")
    assert report["cause"].startswith("the replicas ended with different weights: rank 0 ")
    assert "FAILED: ReplicasDiverged" in output


def test_a_failing_trainer_is_reported_in_its_own_words(start: Callable[..., LocalRun]) -> None:
    run = start(n_replicas=2, **TOY | {"trainer_fn": "poisoned"})
    assert run.end()[0] == 1
    assert "round 0 inner step 3: the loss is nan" in run.report()["cause"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "InvalidRunParameters: "),
        (
            '{"n_replicas": 41, "lrr": 1}',
            "n_replicas: must be a whole number from 1 to 40, not 41; lrr: no such",
        ),
        ("[]", "input: must be a JSON object of run parameters, not an array"),
    ],
)
def test_wrong_parameters_start_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "p.json").write_text(text)
    assert local.main([str(tmp_path / "p.json"), "--store", (tmp_path / "s").as_uri()]) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path).rglob("run.json"))


def test_a_name_taken_a_wrong_store_and_a_missing_file_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "p.json"
    params.write_text("{}")
    open_store(tmp_path.as_uri()).put("diloco-rdv/taken/run.json", b"{}")
    for argv, said in (
        ([str(params), "--store", tmp_path.as_uri(), "--run-id", "taken"], "RunNameTaken: file://"),
        ([str(params), "--store", "ftp://x"], "ValueError: store 'ftp://x': must be s3://BUCKET"),
        ([str(params), "--run-id", "a/b"], "ValueError: run id 'a/b'"),
        ([str(tmp_path / "none.json")], "FileNotFoundError: "),
    ):
        assert local.main(argv) == 2
        assert said in capsys.readouterr().err


def test_the_report_tells_failed_from_diverged() -> None:
    rows = [{"rank": rank, "status": "Completed", "attempts": 1} for rank in range(2)]
    good = {rank: {"weights_hash": "a", "rounds": 3, "last_loss": 2.0} for rank in range(2)}
    assert build_report("r", rows, good, model_uri="m")["status"] == "SUCCEEDED"
    diverged = build_report("r", rows, good | {1: {"weights_hash": "b"}}, model_uri="m")
    assert (diverged["error"], diverged["replicas"][1]["weights_hash"]) == ("ReplicasDiverged", "b")
    missing = build_report("r", rows, {0: good[0]}, model_uri="m")
    assert (missing["error"], missing["cause"]) == ("ReplicaFailed", "no result from ranks [1]")
