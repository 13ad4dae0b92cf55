"""Faults on request: what happens to training jobs now and then, done to those that a schedule names.

The schedule is data: `faults.json` in the server's state folder (`--state-dir`), a list that is read anew at
every look, so that entries may be added while jobs run. They are told apart by their place in the list: add
at the end, with `add`, and take none away.

    [{"job": "mine-*-r2-a0", "fault": "host_lost"},
     {"job": "mine-*", "fault": "throttled", "times": 3}]

`job` is a pattern of the job's name, as a shell has them for files; `times` is how often the entry happens,
whichever jobs it meets. What may happen:

    throttled       CreateTrainingJob answers with a ThrottlingException
    delayed_start   an instance is found only after `wait_s`
    no_capacity     no instance is found: after `wait_s` the job fails with a CapacityError
    interrupted     a spot instance is taken back, `wait_s` passes, and the job starts again under its name on
                    another one. With `sigterm` it is asked to leave, and its checkpoints are copied once
                    more; else it is killed, and they are not
    host_lost       the instance vanishes: killed, nothing is copied, the job fails
    torn_sync       the next copying of several checkpoint files stops in the middle, at a place that `seed`
                    chooses, newest files first (checkpoint_sync.py); nothing is copied from this host again

Seconds are real ones. A running job is looked after every LOOK_S.
"""

import dataclasses
import json
import logging
import threading
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

THROTTLED: Final = "throttled"
DELAYED_START: Final = "delayed_start"
NO_CAPACITY: Final = "no_capacity"
INTERRUPTED: Final = "interrupted"
HOST_LOST: Final = "host_lost"
TORN_SYNC: Final = "torn_sync"
KINDS: Final = (THROTTLED, DELAYED_START, NO_CAPACITY, INTERRUPTED, HOST_LOST, TORN_SYNC)

LOOK_S: Final = 0.1

_log = logging.getLogger("local_aws.faults")


@dataclass(frozen=True)
class Fault:
    """One entry of a schedule. Raises ValueError where it is no fault that this module knows."""

    job: str
    fault: str
    times: int = 1
    wait_s: float = 0.0
    sigterm: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.fault not in KINDS:
            raise ValueError(f"fault {self.fault!r} for job {self.job!r}: must be one of {', '.join(KINDS)}")


class Faults:
    """A server's schedule, and how often each entry of it has happened. Safe to use from any thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._happened: Counter[int] = Counter()

    def take(self, job: str, *kinds: str) -> Fault | None:
        """The first entry of these kinds that is due for a job, which has then happened once more.

        Raises ValueError, naming the file, for a schedule that can't be read.
        """
        with self._lock:
            for place, fault in enumerate(read(self._file)):
                if (
                    fault.fault in kinds
                    and fnmatchcase(job, fault.job)
                    and self._happened[place] < fault.times
                ):
                    self._happened[place] += 1
                    times = self._happened[place]
                    _log.info("job=%s fault=%s place=%d time=%d", job, fault.fault, place, times)
                    return fault
        return None


def read(file: Path) -> list[Fault]:
    """The entries of a schedule; none where there is no file."""
    if not file.exists():
        return []
    try:
        return [Fault(**entry) for entry in json.loads(file.read_text())]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: no list of faults: {error}") from error


def add(file: Path, fault: Fault) -> None:
    """Put a fault at the end of a schedule. No reader sees half a file; writers must take turns."""
    entries = [dataclasses.asdict(entry) for entry in (*read(file), fault)]
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(entries, indent=1))
    whole.replace(file)
