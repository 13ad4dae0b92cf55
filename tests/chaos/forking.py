"""Processes forked from a warmed one: torch is imported once, and not some thousand times.

The parent has imported torch, torchft and boto3 and parsed botocore's models, but started no
thread and no runtime: a fork would lose them. What a process starts, it starts by itself.
"""

import ctypes
import os
import signal
from typing import Final

import boto3
import botocore.loaders
import torch

_PR_SET_PDEATHSIG: Final = 1  # Linux prctl(2)


def warm() -> None:
    """What every replica needs and may share: parse once what botocore reads for each session."""
    torch.set_num_threads(1)
    loader = botocore.loaders.create_loader(None)
    botocore.loaders.create_loader = lambda *_, **__: loader
    client = boto3.Session().client
    client("s3", region_name="us-east-1", aws_access_key_id="warm", aws_secret_access_key="warm")
    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports a good part of torch
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
