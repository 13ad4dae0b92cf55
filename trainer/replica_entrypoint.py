"""What a training job runs: who am I, what is my run, call the trainer function, say how it ended.

    python -m trainer.replica_entrypoint --run s3://BUCKET/diloco-rdv/RUN_ID/run.json --rank 2

The rank and the URI come from the arguments (SageMaker, local processes) or from the
environment: REPLICA_RANK, else JOB_COMPLETION_INDEX (an Indexed Job of Kubernetes), and
RUN_URI. Files go where SageMaker wants them: below /opt/ml, or SAGEMAKER_BASE_DIR.

`source_uri` is on the path before `trainer_module` is imported (trainer/source_code.py).

The contract with a trainer function `trainer_module:trainer_fn`, the default one or yours:

    fn(*, manager, rank, world_size, model_dir, **parameters) -> mapping

`manager` is an ObjectStoreManager; wrap your inner optimizer with
`trainer.diloco.make_diloco_outer_loop(manager=manager, ...)`. What you save in `model_dir`
(a Path) is the job's model; rank 0's is also the run's, in the bucket. `parameters` are the
run's, by RunSpec's names, from `model_name` to `fragment_update_alpha`. What you return
(JSON values; `first_loss`, `last_loss`, `bigram_loss` where you have them) is reported. Call
`manager.check_stop()` between inner steps to leave promptly on SIGTERM.

Exit codes: trainer/failures.py.
"""

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainer import failures, layout
from trainer.earlier_run import publish_last_state
from trainer.parameter_kinds import BUILT_IN_CODE, BUILT_IN_DATA
from trainer.rendezvous.allreduce import ObjectStoreAllReduce
from trainer.rendezvous.errors import RendezvousError, ReplicasDiverged
from trainer.rendezvous.manager import CheckpointPlace, ObjectStoreManager
from trainer.rendezvous.progress import ProgressReporter
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.waiting import Standing, WaitBounds
from trainer.run_file import Run, check_source, read_run
from trainer.run_spec import InvalidRunParameters
from trainer.secret_environment import add_secrets
from trainer.source_code import put_on_path

log = logging.getLogger("replica")


def main(argv: list[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one replica to its end and return its exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(name)s %(message)s")
    base = Path(environ.get(layout.SAGEMAKER_BASE_ENV, layout.SAGEMAKER_BASE_DEFAULT))
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    rank: int | None = None
    try:
        uri, rank = _identity(argv, environ)
        add_secrets(os.environ)
        run = read_run(uri)
        if not 0 <= rank < run.spec.n_replicas:
            raise InvalidRunParameters({"--rank": f"must be from 0 to {run.spec.n_replicas - 1}, not {rank}"})
        _run_replica(run, rank, base, stop, job=environ.get(layout.SAGEMAKER_JOB_ENV, "local"))
    except BaseException as error:  # the process ends here, and says why, whatever it was
        if isinstance(error, SystemExit) and rank is None:
            raise  # --help
        return _end(error, rank, base)
    return 0


def _run_replica(run: Run, rank: int, base: Path, stop: threading.Event, *, job: str) -> None:
    spec, run_log = run.spec, RunLog(run.store, run.run_id)
    check_source(run.store, run.run_id, spec)
    if spec.source_uri != BUILT_IN_CODE:
        put_on_path(_address(run, spec.source_uri), base)
    train = _trainer_function(spec.trainer_module, spec.trainer_fn)
    claim = run_log.take_claim(rank, job=job, pid=os.getpid())
    log.info("event=claimed run=%s rank=%d claim=%d job=%s", run.run_id, rank, claim, job)
    bounds = WaitBounds(spec.timeout_s, spec.startup_timeout_s, spec.round_timeout_s, spec.poll_interval_s)
    standing = Standing(run_log, rank, claim, stop)
    standing.check(0)
    reporter = ProgressReporter(run_log, rank, claim)
    exchange = ObjectStoreAllReduce(
        standing, spec.n_replicas, bounds, wire_dtype=spec.wire_dtype, mean_dtype=spec.mean_dtype
    )
    place = CheckpointPlace(base / layout.CHECKPOINT_FOLDER, run.parameters_sha256)
    manager = ObjectStoreManager(exchange, reporter, place, spec.resume_from)
    model_dir = base / "model"
    model_dir.mkdir(parents=True, exist_ok=True)
    parameters = spec.trainer_parameters() | {
        "dataset_uri": _channel(base) or _data_uri(run, spec.dataset_uri),
        "validation_uri": _data_uri(run, spec.validation_uri),
        "model_name": _model(run, spec.model_name),
        "tokenizer_name": _model(run, spec.tokenizer_name),
    }
    try:
        returned = train(
            manager=manager, rank=rank, world_size=spec.n_replicas, model_dir=model_dir, **parameters
        )
        if not manager.has_fragments:
            raise failures.BadTrainer(
                f"trainer_fn {spec.trainer_fn}: returned without having wired a model to `manager`; wrap the "
                "inner optimizer with trainer.diloco.make_diloco_outer_loop"
            )
        if rank == 0:  # all ranks hold the same model; one copy of it is the run's
            for path in sorted(p for p in model_dir.rglob("*") if p.is_file()):
                key = f"{run_log.keys.model_prefix}/{path.relative_to(model_dir).as_posix()}"
                run.store.put(key, path.read_bytes())
            publish_last_state(manager)
        result = {
            **dict(returned or {}),
            "rank": rank,
            "claim": claim,
            "rounds": manager.current_step(),
            "weights_hash": manager.weights_hash(),
            "model_uri": run.store.address(run_log.keys.model_prefix),
        }
        standing_result = run_log.publish_result(rank, result)
        if standing_result.get("weights_hash") != result["weights_hash"]:
            raise ReplicasDiverged(
                f"rank {rank}: this process ended with weights {result['weights_hash'][:12]}, an earlier one "
                f"of this rank with {str(standing_result.get('weights_hash'))[:12]}. Do not trust the model."
            )
    except BaseException as error:
        stop.set()  # an exchange still in flight must not go on speaking for this rank
        _close_after(error, reporter)
        raise
    reporter.close("finished")
    log.info(
        "event=finished rank=%d rounds=%d weights_hash=%s", rank, result["rounds"], result["weights_hash"]
    )


def _close_after(error: BaseException, reporter: ProgressReporter) -> None:
    """Say that this process ends. The reason to end is the error at hand, not one met while saying so."""
    try:
        reporter.close("stopped" if failures.ending_of(error).exit_code == 0 else "failed")
    except RendezvousError as second:
        error.add_note(f"and the last progress was not written: {second}")


def _identity(argv: list[str] | None, environ: Mapping[str, str]) -> tuple[str, int]:
    """The run's URI and this replica's rank. Raises InvalidRunParameters naming what is missing."""

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise InvalidRunParameters({"arguments": message})

    parser = Parser(prog="python -m trainer.replica_entrypoint", description="Run one replica of a run.")
    parser.add_argument("--run", help=f"URI of the run's run.json (or ${layout.RUN_URI_ENV})")
    parser.add_argument(
        "--rank", help=f"this replica's number, from 0 (or ${layout.RANK_ENV}, ${layout.INDEXED_JOB_ENV})"
    )
    given = parser.parse_args(argv)
    uri = given.run or environ.get(layout.RUN_URI_ENV)
    rank = given.rank or environ.get(layout.RANK_ENV) or environ.get(layout.INDEXED_JOB_ENV)
    problems = {}
    if not uri:
        problems["--run"] = f"is missing, and so is the environment's {layout.RUN_URI_ENV}"
    if rank is None or not (rank.isascii() and rank.isdigit()):
        problems["--rank"] = f"must be a whole number from 0, not {rank!r}"
    if problems:
        raise InvalidRunParameters(problems)
    assert uri is not None and rank is not None
    return uri, int(rank)


def _trainer_function(module_name: str, function_name: str) -> Callable[..., Mapping[str, Any] | None]:
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except ModuleNotFoundError as error:
        raise failures.BadTrainer(f"trainer_module {module_name}: cannot be imported: {error}") from error
    if not callable(function):
        raise failures.BadTrainer(f"trainer_fn {function_name}: {module_name} has no such function")
    return function  # type: ignore[no-any-return]


def _channel(base: Path) -> str | None:
    """The folder in which SageMaker has laid out the data set, if it has."""
    channel = base / "input" / "data" / layout.DATA_CHANNEL
    return str(channel) if channel.is_dir() else None


def _data_uri(run: Run, uri: str) -> str:
    return uri if uri in (BUILT_IN_DATA, "") else _address(run, uri)


def _model(run: Run, name: str) -> str:
    """A slash at the end tells a prefix of the run's own store from a hub id."""
    own = name.endswith("/") and not name.startswith("/")
    return _address(run, name) if own else name


def _address(run: Run, uri: str) -> str:
    """What is named without a scheme lies in the run's own store: the same parameters work everywhere."""
    return uri if urlsplit(uri).scheme else run.store.address(uri)


def _end(error: BaseException, rank: int | None, base: Path) -> int:
    """Write the failure file that SageMaker turns into FailureReason; return the exit code."""
    ending = failures.ending_of(error)
    text = failures.failure_text(error, rank)
    expected = ending is not failures.UNEXPECTED
    log.error("event=ended exit_code=%d %s", ending.exit_code, text, exc_info=None if expected else error)
    output = base / "output"
    output.mkdir(parents=True, exist_ok=True)
    (output / "failure").write_text(text + "\n")
    return ending.exit_code


if __name__ == "__main__":
    sys.exit(main())
