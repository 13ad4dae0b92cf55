"""CheckpointConfig: a job's checkpoint folder and its copy in S3.

SageMaker restores the copy before the container starts, and mirrors what changes in the folder while it
runs, deletions included ("Checkpoints in Amazon SageMaker AI", developer guide). It copies files one by one
in an order it doesn't promise, and whatever has not been copied when a host vanishes is gone: so a reader
may find half of a checkpoint, or its index without its files. `torn_sync` (faults.py) makes that happen.
"""

import os
import random
from pathlib import Path
from typing import Any, Final

from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError

from local_aws.faults import TORN_SYNC, Faults
from local_aws.job_folder import JobFailed

COPY_FAILED: Final = (ClientError, S3UploadFailedError)

_Stamp = tuple[int, int]  # a file's time of change, ns, and its size


class CheckpointSync:
    """One host's copying for one job: `restore` first, then `copy` now and then, by one thread at a time."""

    def __init__(self, s3: Any, uri: str, folder: Path, *, job: str, faults: Faults) -> None:
        self._s3 = s3
        self._bucket, _, key = uri.removeprefix("s3://").partition("/")
        self._prefix = f"{key.rstrip('/')}/"  # rank_0001 must not bring along rank_00010
        self._folder = folder
        self._job = job
        self._faults = faults
        self._copied: dict[str, _Stamp] = {}
        self._is_torn = False

    def restore(self) -> int:
        """Fetch every file of the copy; how many there were. Raises JobFailed."""
        try:
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            names = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
            for key in names:
                path = self._folder / key.removeprefix(self._prefix)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._s3.download_file(self._bucket, key, str(path))
        except ClientError as error:
            raise JobFailed(
                f"ClientError: Data download failed:s3://{self._bucket}/{self._prefix}: {error}"
            ) from error
        self._copied = self._stamps()
        return len(names)

    def copy(self) -> None:
        """Mirror what has changed since the last time. Raises COPY_FAILED; what is left is tried again."""
        if self._is_torn:
            return
        now = self._stamps()
        changed = sorted((name for name in now if self._copied.get(name) != now[name]), key=now.__getitem__)
        gone = sorted(self._copied.keys() - now.keys())
        if len(changed) + len(gone) > 1 and (fault := self._faults.take(self._job, TORN_SYNC)):
            self._is_torn = True
            for name in torn(changed, gone, fault.seed):
                self._mirror(name, now.get(name))
            return
        for name in (*changed, *gone):
            self._mirror(name, now.get(name))

    def _mirror(self, name: str, stamp: _Stamp | None) -> None:
        key = self._prefix + name
        if stamp is None:
            self._s3.delete_object(Bucket=self._bucket, Key=key)
            self._copied.pop(name, None)
            return
        try:
            self._s3.upload_file(str(self._folder / name), self._bucket, key)
        except FileNotFoundError:  # deleted meanwhile, which the next look finds
            return
        self._copied[name] = stamp

    def _stamps(self) -> dict[str, _Stamp]:
        """Every file below the folder, as it is now."""
        found: dict[str, _Stamp] = {}
        # os.walk passes over folders that are deleted meanwhile, where rglob raises.
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                found[path.relative_to(self._folder).as_posix()] = (status.st_mtime_ns, status.st_size)
        return found


def torn(changed: list[str], gone: list[str], seed: int) -> list[str]:
    """The part of a copying that happens before it is torn: at least one step of it, and never all.

    `changed` is sorted, oldest first. The newest comes first here, as an index is written after what it
    lists; deletions come at any point.
    """
    chance = random.Random(seed)  # noqa: S311  chance, not a secret
    steps = list(reversed(changed))
    for name in gone:
        steps.insert(chance.randint(0, len(steps)), name)
    return steps[: chance.randint(1, len(steps) - 1)]
