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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from trainer.layout import RunLayout, check_run_id
from trainer.local_gang import Gang
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
    report = run_locally(run, folder)
    print_report(report)
    print(f"report: {folder / 'report.json'}")
    return {ABORTED: 130, FAILED: 1}.get(report["status"], 0)


def run_locally(run: Run, folder: Path) -> Report:
    """Start the replicas, follow them to the end, write and return the report."""
    log = RunLog(run.store, run.run_id)
    print(f"run {run.run_id}: {run.spec.n_replicas} replicas, {run.spec.rounds} rounds, log {run.uri}")
    cause = ""
    with Gang(run.uri, folder, run.spec.n_replicas) as gang:
        try:
            _follow(gang, log, run.spec.rounds)
        except KeyboardInterrupt:
            cause = "interrupted; every replica was stopped"
            log.abort(by="trainer.local", reason=cause, round_index=None, missing=[])
    rows = [{"rank": r.rank, "status": r.status, "attempts": 1} for r in gang.replicas]
    results = {rank: doc for rank in range(len(rows)) if (doc := _result(log, rank)) is not None}
    model_dir = folder / "model"
    report = build_report(run.run_id, rows, results, model_uri=model_dir.as_uri())
    failed = gang.failed()
    if cause:
        report |= {"status": ABORTED, "error": "Interrupted", "cause": cause}
    elif failed is not None:
        report |= {"status": FAILED, "error": "ReplicaFailed", "cause": failed.failure()}
    _download(run.store, log.keys.model_prefix, model_dir)
    metrics = {rank: _metrics(log, rank) for rank in range(len(rows))}
    write_report(folder, report, metrics)
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
    console = Console()
    lines = _Lines(log, rounds)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while gang.running() and gang.failed() is None:
                live.update(lines.table(gang), refresh=True)
                time.sleep(LOOK_EVERY_S)
            live.update(lines.table(gang), refresh=True)
    else:
        while gang.running() and gang.failed() is None:
            for line in lines.changed(gang):
                print(line, flush=True)
            time.sleep(LOOK_EVERY_S)
    failed = gang.failed()
    if failed is not None:
        log.abort(by="trainer.local", reason=str(failed.failure()), round_index=None, missing=[failed.rank])
        gang.wait(PEERS_LEAVE_S)


class _Lines:
    """What there is to say of each replica, from its progress object."""

    def __init__(self, log: RunLog, rounds: int) -> None:
        self._log = log
        self._rounds = rounds
        self._said: dict[int, tuple[Any, ...]] = {}

    def table(self, gang: Gang) -> Table:
        table = Table("rank", "state", "round", "inner step", "loss", "tokens/s", box=None)
        for replica in gang.replicas:
            table.add_row(str(replica.rank), *self._cells(replica.rank, replica.status))
        return table

    def changed(self, gang: Gang) -> list[str]:
        """Lines of those replicas that have something new to say: another state, or a finished round."""
        lines = []
        for replica in gang.replicas:
            state, round_shown, step, loss, speed = self._cells(replica.rank, replica.status)
            if self._said.get(replica.rank) != (state, loss, speed):
                self._said[replica.rank] = (state, loss, speed)
                where = f"{state}, round {round_shown}, inner step {step}"
                lines.append(f"rank {replica.rank}: {where}, loss {loss}, {speed} tokens/s")
        return lines

    def _cells(self, rank: int, status: str) -> list[str]:
        data = self._log.store.find(self._log.keys.progress(rank))
        progress = read_json(data, f"progress of rank {rank}") if data else {}
        loss, speed = progress.get("loss"), progress.get("tokens_per_s")
        state = progress.get("state", "importing") if status == "InProgress" else status
        return [
            state,
            f"{progress.get('round', 0)}/{self._rounds}",
            str(progress.get("inner_step", 0)),
            "-" if loss is None else f"{loss:.4f}",
            "-" if speed is None else f"{speed:.0f}",
        ]


def _result(log: RunLog, rank: int) -> dict[str, Any] | None:
    data = log.store.find(log.keys.result(rank))
    return None if data is None else read_json(data, f"result of rank {rank}")


def _metrics(log: RunLog, rank: int) -> list[dict[str, Any]]:
    data = log.store.find(RunLayout(log.run_id).metrics(rank)) or b""
    return [json.loads(line) for line in data.splitlines()]


def _download(store: ObjectStore, prefix: str, folder: Path) -> None:
    for key in store.keys(prefix):
        path = folder / key.removeprefix(f"{prefix}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.get(key))


if __name__ == "__main__":
    sys.exit(main())
