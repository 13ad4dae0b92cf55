"""Who am I, what is my run, how did it end: the process that a training job runs."""

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.gang import together
from trainer import failures
from trainer.layout import RunLayout
from trainer.rendezvous import errors
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.run_log import RunLog
from trainer.replica_entrypoint import main
from trainer.run_file import RunNameTaken, create_run, read_run
from trainer.run_spec import InvalidRunParameters, parse

KEYS = RunLayout("r")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A store's folder; the handlers that `main` sets are taken back."""
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    yield tmp_path / "store"
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Job:
    """Runs of the entrypoint on one store, each with a base folder of its own."""

    def __init__(self, folder: Path, **parameters: Any) -> None:
        self.store: ObjectStore = open_store(folder.as_uri())
        self.folder = folder
        defaults = {"trainer_module": "tests.support.trainers", "trainer_fn": "toy", "n_replicas": 1,
                    "poll_interval_s": 0.02}  # fmt: skip
        self.run = create_run(self.store, "r", parse(defaults | parameters))

    def base(self, rank: int) -> Path:
        return self.folder.parent / f"rank{rank}"

    def start(
        self, rank: int = 0, argv: list[str] | None = None, environ: Mapping[str, str] | None = None
    ) -> int:
        if argv is None:
            argv = ["--run", self.run.uri, "--rank", str(rank)]
        return main(argv, {"SAGEMAKER_BASE_DIR": str(self.base(rank)), **(environ or {})})

    def failure(self, rank: int = 0) -> str:
        return (self.base(rank) / "output" / "failure").read_text()

    def result(self, rank: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.get(KEYS.result(rank)))
        return found


def test_a_trainer_function_of_somebody_elses_runs_by_the_contract(folder: Path) -> None:
    job = Job(folder)
    assert job.start() == 0
    result = job.result()
    assert result["seen"] == sorted(parse({}).trainer_parameters())
    assert (result["rank"], result["claim"], result["rounds"], result["last_loss"]) == (0, 0, 2, 1.25)
    assert result["model_uri"] == f"{folder.as_uri()}/diloco-out/r/model"
    assert job.store.get("diloco-out/r/model/weights.txt") == b"world size 1"
    assert json.loads(job.store.get(KEYS.progress(0)))["state"] == "finished"
    assert not (job.base(0) / "output" / "failure").exists()


def test_a_trainer_of_the_users_own_lies_in_the_runs_store(folder: Path) -> None:
    job = Job(folder, source_uri="diloco-in/mine", trainer_module="their_trainer")
    job.store.put("diloco-in/mine/their_trainer.py", b"from tests.support.trainers import toy")
    assert job.start() == 0
    assert job.result()["last_loss"] == 1.25


@pytest.mark.parametrize(
    "environ",
    [
        {"REPLICA_RANK": "0"},
        {"JOB_COMPLETION_INDEX": "0"},
        {"REPLICA_RANK": "0", "JOB_COMPLETION_INDEX": "7"},  # the former wins
    ],
)
def test_rank_and_run_may_come_from_the_environment(folder: Path, environ: dict[str, str]) -> None:
    job = Job(folder)
    assert job.start(argv=[], environ={"RUN_URI": job.run.uri, **environ}) == 0
    assert job.result()["rank"] == 0


def test_arguments_win_over_the_environment(folder: Path) -> None:
    job = Job(folder)
    assert job.start(0, environ={"REPLICA_RANK": "7", "RUN_URI": "s3://elsewhere"}) == 0


@pytest.mark.parametrize("quoted", [False, True])
def test_run_json_is_read_plainly_or_as_a_quoted_string(tmp_path: Path, quoted: bool) -> None:
    store = open_store(tmp_path.as_uri())
    text = json.dumps({"run_id": "r", "parameters": {"n_replicas": 3}})
    store.put(KEYS.run_file, (json.dumps(text) if quoted else text).encode())
    assert read_run(f"{tmp_path.as_uri()}/{KEYS.run_file}").spec.n_replicas == 3


def test_a_run_is_never_started_twice_under_one_name(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    create_run(store, "r", parse({}))
    with pytest.raises(RunNameTaken, match="diloco-rdv/r/run.json exists"):
        create_run(store, "r", parse({"n_replicas": 3}))


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (
            [],
            10,
            "InvalidRunParameters: --run: is missing, and so is the environment's RUN_URI; --rank: must be",
        ),
        (["--run", "URI", "--rank", "x"], 10, "--rank: must be a whole number from 0, not 'x'"),
        (["--run", "URI", "--rank", "1"], 10, "rank 1: --rank: must be from 0 to 0, not 1"),
        (["--run", "URI", "--wrong"], 10, "arguments: unrecognized arguments: --wrong"),
        (
            ["--run", "s3://b/x/run.json", "--rank", "0"],
            10,
            "--run: must be the URI of a run.json, as s3://BUCKET",
        ),
        (["--run", "file:///nowhere/diloco-rdv/r/run.json", "--rank", "0"], 18, "the run never started"),
    ],
)
def test_wrong_arguments_end_in_words(folder: Path, argv: list[str], code: int, text: str) -> None:
    job = Job(folder)
    assert job.start(argv=[job.run.uri if part == "URI" else part for part in argv]) == code
    assert text in job.failure()


@pytest.mark.parametrize(
    ("parameters", "code", "text"),
    [
        ({"trainer_module": "no.such"}, 10, "BadTrainer: rank 0: trainer_module no.such: cannot be imported"),
        ({"trainer_fn": "absent"}, 10, "BadTrainer: rank 0: trainer_fn absent: tests.support.trainers has"),
        ({"trainer_fn": "not_a_function"}, 10, "BadTrainer: rank 0: trainer_fn not_a_function"),
        ({"trainer_fn": "broken"}, 1, "RuntimeError: rank 0: out of luck"),
        ({"trainer_fn": "poisoned"}, 13, "NonFinite: rank 0 round 0 inner step 3: the loss is nan"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_and_a_code(
    folder: Path, parameters: dict[str, Any], code: int, text: str
) -> None:
    job = Job(folder, **parameters)
    assert job.start() == code
    assert job.failure().startswith(text)
    assert job.failure().count("\n") == 1
    assert job.store.find(KEYS.result(0)) is None


def test_a_failure_text_keeps_what_sagemaker_shows() -> None:
    text = failures.failure_text(errors.StoreFailed("x" * 5000), 3)
    assert text.startswith("StoreFailed: rank 3: xxx")
    assert len(text) == 1024


def test_every_error_of_the_rendezvous_has_an_ending_of_its_own() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)} - {errors.RendezvousError}
    assert kinds <= failures.ENDINGS.keys()
    assert failures.ending_of(errors.PeerLost("x")).relaunch is False
    assert failures.ending_of(errors.StoreFailed("x")).relaunch is True
    assert failures.ending_of(MemoryError()).exit_code == 1


def test_a_replica_of_a_run_that_was_given_up_leaves_as_peer_lost(folder: Path) -> None:
    job = Job(folder, n_replicas=2)
    RunLog(job.store, "r").abort(by="rank 1", reason="no more", round_index=0, missing=[])
    assert job.start() == 15
    assert job.failure().startswith("PeerLost: rank 0 round 0: the run was given up by rank 1: no more")


def test_a_peer_that_never_comes_ends_the_run_in_the_stated_time(folder: Path) -> None:
    job = Job(folder, n_replicas=2, timeout_s=1, startup_timeout_s=1, round_timeout_s=1)
    assert job.start() == 15
    assert "rank 0 round 0: no contribution from ranks [1]" in job.failure()
    assert json.loads(job.store.get(KEYS.abort))["missing"] == [1]


def test_sigterm_ends_a_waiting_replica_with_exit_code_0_and_no_result(folder: Path) -> None:
    """It waits for a peer that never comes; the signal arrives once its contribution is there."""
    job = Job(folder, n_replicas=2)

    def after_its_contribution() -> None:
        log = RunLog(job.store, "r")
        while log.contribution(0, 0) is None:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=after_its_contribution)
    thread.start()
    assert job.start() == 0
    thread.join()
    assert job.failure() == "Stopped: rank 0: asked to stop, and did\n"
    assert json.loads(job.store.get(KEYS.progress(0)))["state"] == "stopped"
    assert job.store.find(KEYS.result(0)) is None


def test_sigterm_ends_after_the_inner_step_and_the_next_process_resumes_with_the_same_bits(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common = {"seed": 1, "total_steps": 12, "sync_every": 4}
    whole = Job(folder.parent / "whole" / "store", **common)
    assert whole.start() == 0

    job = Job(folder, trainer_fn="stopped_once", **common)
    assert job.start() == 0
    assert job.failure() == "Stopped: rank 0: asked to stop, and did\n"
    progress = json.loads(job.store.get(KEYS.progress(0)))
    assert (progress["state"], progress["inner_step"], progress["round"]) == ("stopped", 6, 1)
    assert [path.name for path in (job.base(0) / "checkpoints").iterdir()] == ["round_000001.c0"]
    with caplog.at_level(logging.INFO):
        assert job.start() == 0
    assert "event=resumed run=r rank=0 round=1 checkpoint=round_000001.c0 replayed=False" in caplog.text
    assert job.result()["weights_hash"] == whole.result()["weights_hash"]


def test_a_checkpoint_of_another_run_ends_the_replica(folder: Path) -> None:
    other = Job(folder.parent / "elsewhere", total_steps=6)
    assert other.start() == 0
    job = Job(folder)  # other parameters, the same base folder
    assert job.start() == 23
    assert "ForeignCheckpoint: rank 0: " in job.failure()
    assert "its parameters_sha256 is" in job.failure()


def test_two_replicas_end_with_equal_hashes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # ranks are threads here
    job = Job(folder, n_replicas=2)
    assert together(2, job.start) == [0, 0]
    assert job.result(0)["weights_hash"] == job.result(1)["weights_hash"]


def test_wrong_parameters_in_run_json_are_all_named(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put(KEYS.run_file, b'{"run_id": "r", "parameters": {"n_replicas": 99, "lr": 0}}')
    with pytest.raises(InvalidRunParameters, match=r"n_replicas: must be .*; lr: must be"):
        read_run(f"{tmp_path.as_uri()}/{KEYS.run_file}")
