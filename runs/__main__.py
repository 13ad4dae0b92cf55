"""The client: `python -m runs --help`."""

import argparse
import sys
from pathlib import Path

from runs.upload_text import upload_text


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs", description="Start runs, and what belongs to it.")
    commands = parser.add_subparsers(dest="command", required=True)
    upload = commands.add_parser("upload-text", help="put a folder of text where replicas read it")
    upload.add_argument("folder", type=Path)
    upload.add_argument("--store", required=True, help="s3://BUCKET or file:///FOLDER")
    upload.add_argument("--name", help="name below diloco-in/ (default: the folder's)")
    given = parser.parse_args(argv)
    try:
        prefix = upload_text(given.folder, given.store.rstrip("/"), given.name or given.folder.resolve().name)
    except (ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f'run parameter: "dataset_uri": "{prefix}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
