"""A replica process: forked from a warmed parent, then exactly what a training job runs."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tests.chaos.server import access_key
from trainer import layout, replica_entrypoint


def become(
    rank: int, base: Path, address: str, run_key: str, prepare: Callable[[], None] = lambda: None
) -> NoReturn:
    """Be the replica of a rank, in a process that was just forked; `prepare` comes first. Never returns."""
    code = 99
    try:
        _redirect(base / "log.txt")
        os.environ |= {
            "AWS_ACCESS_KEY_ID": access_key(),
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
            layout.SAGEMAKER_BASE_ENV: str(base),
        }
        prepare()
        code = replica_entrypoint.main(["--run", f"s3://bucket/{run_key}", "--rank", str(rank)])
    except BaseException:  # noqa: BLE001 - the log is all there is
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    """Standard output and error into the replica's log, also of what writes to them from C."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
