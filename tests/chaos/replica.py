"""A replica process: forked from a warmed parent, then exactly what a training job runs.

The parent has imported torch, torchft and boto3 and parsed botocore's models, but started no
thread and no runtime; what a replica starts, it starts here.
"""

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

import boto3
import botocore.loaders
import torch

from tests.chaos import disturbances, planted
from tests.chaos.schedule import Schedule
from tests.chaos.server import access_key
from tests.chaos.trainer import Net
from trainer import layout, replica_entrypoint
from trainer.rendezvous import geometry, sharded
from trainer.rendezvous.wire import BLOCK

_PR_SET_PDEATHSIG: Final = 1  # Linux prctl(2)
TAKE_OVER_S: Final = 0.4  # in place of sharded.py's: long enough that an owner comes first as a rule


def warm() -> None:
    """What every replica needs and may share: parse once what botocore reads for each session."""
    torch.set_num_threads(1)
    loader = botocore.loaders.create_loader(None)
    botocore.loaders.create_loader = lambda *_, **__: loader
    client = boto3.Session().client
    client("s3", region_name="us-east-1", aws_access_key_id="warm", aws_secret_access_key="warm")
    torch.optim.AdamW(Net().parameters())  # the first optimizer imports a good part of torch
    threads = os.listdir("/proc/self/task")  # noqa: PTH208
    assert len(threads) == 1, f"the parent has {len(threads)} threads; a fork would lose them"


def fork() -> int:
    """As os.fork; the child dies with its parent."""
    parent, process = os.getpid(), os.fork()
    if process == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    return process


def run(schedule: Schedule, rank: int, life: int, address: str, run_key: str, base: Path) -> NoReturn:
    """Become the process number `life` of `rank`; never returns."""
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
        if schedule.sharded:
            geometry.SHARD_FROM_ELEMENTS = 0
            geometry.CHUNK_ELEMENTS = BLOCK
            sharded.TAKE_OVER_S = TAKE_OVER_S
        if schedule.bug is not None:
            planted.BUGS[schedule.bug]()
        if schedule.local is not None and rank == schedule.rank and life < schedule.local_lives:
            disturbances.LOCAL[schedule.local](schedule, base)
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
