"""N worker processes that do one thing at the same moment, and what it cost each of them."""

import ctypes
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Self

# mallopt(3), glibc: one arena, which keeps what is freed and serves large blocks too.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
_LARGEST: Final = 2**30


@dataclass(frozen=True)
class Cost:
    """Of one worker in one go."""

    wall_s: float
    cpu_s: float
    extra_bytes: int  # peak resident memory above what was resident before
    result: Any


class Workers:
    """Use as a context. `setup(rank, *args)` runs once in each process and returns its function."""

    def __init__(self, size: int, setup: Callable[..., Callable[..., Any]], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share memory, and so hide its use
        self._pipes: list[Connection] = []
        self._processes = []
        barrier = context.Barrier(size)
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, barrier, setup, rank, args), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()

    def run(self, *args: Any) -> list[Cost]:
        """All at once, `function(*args)` in each; their costs by rank. Raises what one of them raised."""
        for pipe in self._pipes:
            pipe.send(args)
        costs: dict[int, Cost] = {}
        while len(costs) < len(self._pipes):
            # Whoever speaks first: the peers of one that failed may wait for it for a long time.
            ready = wait([pipe for rank, pipe in enumerate(self._pipes) if rank not in costs])
            for rank in [rank for rank, pipe in enumerate(self._pipes) if pipe in ready]:
                cost = self._pipes[rank].recv()
                if isinstance(cost, BaseException):
                    raise cost
                costs[rank] = cost
        return [costs[rank] for rank in range(len(self._pipes))]


def keep_freed_memory() -> None:
    """Have this process reuse what it frees, for a server on the cores of those it serves.

    Else half of its time goes into having the kernel clear fresh pages for each object, which an object
    store elsewhere would not take from anybody measured here. Call it before the first thread.
    """
    glibc = ctypes.CDLL(None)
    for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, 2**31 - 1)):
        if glibc.mallopt(option, value) != 1:
            raise OSError(f"mallopt({option}, {value}) was refused")


def _work(pipe: Connection, barrier: Any, setup: Callable[..., Any], rank: int, args: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    function = setup(rank, *args)
    pipe.send("ready")
    while True:
        given = pipe.recv()
        try:
            pipe.send(_measured(barrier, function, given))
        except BaseException as error:  # noqa: BLE001 - raised again by the parent
            pipe.send(error)


def _measured(barrier: Any, function: Callable[..., Any], given: Any) -> Cost:
    barrier.wait(120)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: sets the peak back to what is resident now
    before_bytes = _status("VmRSS")
    cpu_s, wall_s = _cpu_s(), time.perf_counter()
    result = function(*given)
    wall_s, cpu_s = time.perf_counter() - wall_s, _cpu_s() - cpu_s
    return Cost(wall_s, cpu_s, _status("VmHWM") - before_bytes, result)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
