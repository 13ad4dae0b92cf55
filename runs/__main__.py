"""The client: start runs, follow them, fetch what they leave. `python -m runs --help`.

Exit codes: 0 done, or the run succeeded; 1 the run failed; 2 nothing was started, for a reason
given; 3 cannot tell: AWS did not answer, and the run may well go on.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from runs.deployment import DEFAULT_PREFIX, CannotTell, Deployment, NotDeployed
from runs.download_model import NoModel, download_model
from runs.execution import NameTaken
from runs.start import follow, start
from runs.upload_text import upload_text
from trainer.report import SUCCEEDED

RESULTS: Final = Path(".local/runs")


def main(argv: list[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    try:
        if given.command == "start":
            return _start(given)
        if given.command == "upload-text":
            store = given.store or f"s3://{Deployment.find(given.prefix).bucket}"
            name = given.name or given.folder.resolve().name
            prefix = upload_text(given.folder, store.rstrip("/"), name)
            print(f'run parameter: "dataset_uri": "{prefix}"')
            return 0
        written = download_model(
            Deployment.find(given.prefix), given.run_id, given.to or RESULTS / given.run_id / "model"
        )
        print(f"{len(written)} files in {written[0].parent}")
        return 0
    except (CannotTell, ClientError, BotoCoreError) as error:
        print(f"cannot tell: {error}", file=sys.stderr)
        return 3
    except (NotDeployed, NameTaken, NoModel, ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def _start(given: argparse.Namespace) -> int:
    execution, spec = start(Deployment.find(given.prefix), given.parameters, given.name)
    if not given.follow:
        return 0
    try:
        report = follow(execution, spec.rounds, given.out / execution.keys.run_id)
    except KeyboardInterrupt:
        print("no longer followed; the run goes on (stop it in the console, or with aws stepfunctions)")
        return 3
    return 0 if report["status"] == SUCCEEDED else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runs", description=__doc__.split("`")[0])
    parser.add_argument(
        "--prefix", default=DEFAULT_PREFIX, help="of the stacks' names (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("start", help="start a run from a JSON file of run parameters")
    run.add_argument("parameters", type=Path)
    run.add_argument("--name", help="of the run (default: the file's name and the time)")
    run.add_argument("--follow", action="store_true", help="print progress, then table, report and plot")
    run.add_argument("--out", type=Path, default=RESULTS, help="where the report goes (default: %(default)s)")

    upload = commands.add_parser(
        "upload-text", help="put a folder of text, JSON lines or Parquet where replicas read it"
    )
    upload.add_argument("folder", type=Path)
    upload.add_argument("--store", help="s3://BUCKET or file:///FOLDER (default: the run bucket)")
    upload.add_argument("--name", help="name below diloco-in/ (default: the folder's)")

    model = commands.add_parser("download-model", help="copy the model of a finished run to this machine")
    model.add_argument("run_id")
    model.add_argument("--to", type=Path, help=f"folder (default: {RESULTS}/RUN_ID/model)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
