"""A whole run on this machine, without AWS: N replica processes and a store.

    python -m trainer.local PARAMS.json [--store file:///FOLDER | s3://BUCKET] [--run-id NAME]

The processes run what training jobs run. The store is a local folder by default, or any bucket
that boto3's credentials and endpoint reach. Results go to .local/runs/RUN_ID: report.json,
loss.png, model/, and each replica's folder with its log. Exit code 0: all replicas finished
with the same weights; 1: the run failed; 2: it could not start; 130: interrupted.
"""

import argparse
import json
import signal
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from trainer.layout import check_run_id
from trainer.local_gang import Gang, Replica
from trainer.progress_view import ProgressLines, ReplicaView
from trainer.rendezvous.errors import RendezvousError
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.run_log import RunLog, read_json
from trainer.report import ABORTED, FAILED, Report, build_report, print_report, write_report
from trainer.run_file import Run, RunNameTaken, create_run
from trainer.run_spec import InvalidRunParameters, parse

LOOK_EVERY_S: Final = 0.5
PEERS_LEAVE_S: Final = 15.0  # after an abort marker: a few polls


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.local", description=__doc__.split("\n\n")[0])
    parser.add_argument("parameters", type=Path, help="JSON file of run parameters; {} is a smoke run")
    parser.add_argument("--store", help="file:///FOLDER or s3://BUCKET (default: .local/store)")
    parser.add_argument("--run-id", help="name of the run (default: the file's name and the time)")
    parser.add_argument("--out", type=Path, default=Path(".local/runs"), help="where results go")
    given = parser.parse_args(argv)
    try:
        run = _create(given.parameters, given.store, given.run_id)
    except (InvalidRunParameters, RunNameTaken, RendezvousError, ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    # SIGTERM ends the gang as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    folder = given.out.resolve() / run.run_id
    try:
        report = run_locally(run, folder)
    except RendezvousError as error:  # the store itself failed us; the replicas have been stopped
        print(f"{type(error).__name__}: {error}. Logs: {folder}", file=sys.stderr)
        return 1
    print_report(report)
    print(f"report: {folder / 'report.json'}")
    return {ABORTED: 130, FAILED: 1}.get(report["status"], 0)


def run_locally(run: Run, folder: Path) -> Report:
    """Start the replicas, follow them to the end, write and return the report."""
    log = RunLog(run.store, run.run_id)
    print(f"run {run.run_id}: {run.spec.n_replicas} replicas, {run.spec.rounds} rounds, log {run.uri}")
    ended: dict[str, Any] = {}
    with Gang(run.uri, folder, run.spec.n_replicas) as gang:
        try:
            _follow(gang, log, run.spec.rounds)
        except KeyboardInterrupt:
            ended = {"status": ABORTED, "error": "Interrupted", "cause": "every replica was stopped"}
            log.abort(by="trainer.local", reason="interrupted", round_index=None, missing=[])
    failed = gang.failed()
    if not ended and failed is not None:
        cause = str(failed.failure())
        # Diverged weights are the run's failure; everything else is one replica's.
        error = cause.split(":")[0] if cause.startswith("ReplicasDiverged:") else "ReplicaFailed"
        ended = {"status": FAILED, "error": error, "cause": cause}
    rows = [{"rank": r.rank, "status": r.status, "attempts": 1} for r in gang.replicas]
    results = {rank: doc for rank in range(len(rows)) if (doc := _result(log, rank)) is not None}
    model_dir = folder / "model"
    report = build_report(run.run_id, rows, results, model_uri=model_dir.as_uri()) | ended
    _download(run.store, log.keys.model_prefix, model_dir)
    write_report(folder, report, {rank: _metrics(log, rank) for rank in range(len(rows))})
    return report


def _create(parameters: Path, store_uri: str | None, run_id: str | None) -> Run:
    try:
        raw: Any = json.loads(parameters.read_text())
    except json.JSONDecodeError as error:
        raise InvalidRunParameters({str(parameters): f"is not JSON: {error}"}) from error
    spec = parse(raw)
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run_id = check_run_id(run_id or f"{parameters.stem}-{now}")
    return create_run(open_store(store_uri or Path(".local/store").resolve().as_uri()), run_id, spec)


def _follow(gang: Gang, log: RunLog, rounds: int) -> None:
    """Show a line a replica until all have ended; a failure makes an end of all."""
    console, lines = Console(), ProgressLines(rounds)
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        going = True
        while going:
            going = bool(gang.running()) and gang.failed() is None
            views = [_view(log, replica) for replica in gang.replicas]
            if live is not None:
                live.update(lines.table(views), refresh=True)
            else:
                for line in lines.changed(views):
                    print(line, flush=True)
            if going:
                time.sleep(LOOK_EVERY_S)
    failed = gang.failed()
    if failed is not None:
        log.abort(by="trainer.local", reason=str(failed.failure()), round_index=None, missing=[failed.rank])
        gang.wait(PEERS_LEAVE_S)


def _view(log: RunLog, replica: Replica) -> ReplicaView:
    data = log.store.find(log.keys.progress(replica.rank))
    progress = read_json(data, f"progress of rank {replica.rank}") if data else None
    return ReplicaView(replica.rank, replica.status, progress)


def _result(log: RunLog, rank: int) -> dict[str, Any] | None:
    data = log.store.find(log.keys.result(rank))
    return None if data is None else read_json(data, f"result of rank {rank}")


def _metrics(log: RunLog, rank: int) -> list[dict[str, Any]]:
    data = log.store.find(log.keys.metrics(rank)) or b""
    return [json.loads(line) for line in data.splitlines()]


def _download(store: ObjectStore, prefix: str, folder: Path) -> None:
    for key in store.keys(prefix):
        path = folder / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(key))


if __name__ == "__main__":
    sys.exit(main())
