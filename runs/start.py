"""Start a run, and follow it to its end."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from runs.deployment import CannotTell, Deployment
from runs.execution import ENDED, Execution
from trainer.layout import check_run_id
from trainer.progress_view import ProgressLines
from trainer.report import Report, print_report, write_report
from trainer.run_spec import InvalidRunParameters, RunSpec, parse

LOOK_EVERY_S: Final = 2.0
GIVE_UP_TELLING_AFTER: Final = 30  # looks in a row that AWS did not answer


def start(deployment: Deployment, file: Path, name: str | None) -> tuple[Execution, RunSpec]:
    """Start the run that a file of parameters describes, checked before anything is asked of AWS.

    The state machine checks once more: it is what people start by hand, too.
    """
    try:
        raw: Any = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise InvalidRunParameters({str(file): f"is not JSON: {error}"}) from error
    spec = parse(raw)
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = check_run_id(name or f"{file.stem}-{now}")
    execution = Execution.start(deployment, name, raw, spec.n_replicas)
    print(f"run {name}: {spec.n_replicas} replicas, {spec.rounds} rounds")
    print(f"execution: {execution.arn}")
    for title, link in deployment.links(execution.arn, name).items():
        print(f"{title}: {link}")
    return execution, spec


def follow(
    execution: Execution, rounds: int, folder: Path, sleep: Callable[[float], None] = time.sleep
) -> Report:
    """Print a line whenever a replica has news, until the run has ended; write and return its report.

    Raises CannotTell where AWS has not answered for a while: the run goes on all the same.
    """
    lines, unanswered = ProgressLines(rounds), 0
    while True:
        try:
            described = execution.describe()
            for line in lines.changed(execution.views()):
                print(line, flush=True)
            unanswered = 0
            if described["status"] in ENDED:
                break
        except CannotTell:
            unanswered += 1
            if unanswered >= GIVE_UP_TELLING_AFTER:
                raise
        sleep(LOOK_EVERY_S)
    report = execution.report(described)
    write_report(folder, report, execution.metrics())
    print_report(report)
    print(f"report: {folder / 'report.json'}")
    return report
