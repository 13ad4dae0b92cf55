"""One replica's checkpoints: a folder each round, whole or not there.

    BASE/checkpoints/round_000007.c2/     round 7 is next; written by process 2 of this rank
        state.json tensors.safetensors    a state tree (trainer/state_tree.py)
        index.json                        whose they are; length and checksum of the others

The folder is made under another name and renamed when all of it is on the disk. That alone isn't
enough: SageMaker copies the folder to S3 file by file and may be cut short anywhere, so the index
says what must be there, and the newest checkpoint that is whole counts. The last two are kept.

Written on a thread of its own; the training thread is held for the copy of the state alone.
"""

import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import safetensors.torch
from awscrt import checksums
from safetensors import SafetensorError

from trainer.failures import CheckpointNotWritten, ForeignCheckpoint
from trainer.state_tree import Tensors, pack, unpack

KEPT: Final = 2
INDEX: Final = "index.json"
STATE: Final = "state.json"
TENSORS: Final = "tensors.safetensors"
_FOLDER: Final = re.compile(r"round_(\d{6,})\.c(\d+)")
_UNFINISHED: Final = "unfinished."
_READ_BYTES: Final = 16 * 2**20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """Whose checkpoints these are. One of any other owner is refused."""

    run_id: str
    rank: int
    parameters_sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: the round that comes next, and the state at its beginning."""

    folder: Path
    round: int
    claim: int
    state: Mapping[str, Any]


class _Damaged(Exception):
    """Not what its index says, or without one."""


class Checkpoints:
    """The checkpoints of one rank in `folder`, written by the process that holds `claim`."""

    def __init__(self, folder: Path, owner: Owner, claim: int) -> None:
        self._folder = folder
        self._owner = owner
        self._claim = claim
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint, or None where there is none; damaged ones are passed over and logged.

        Raises ForeignCheckpoint for one of another run, rank or other run parameters.
        """
        for (round_index, claim), folder in sorted(self._found().items(), reverse=True):
            try:
                return self._read(folder, round_index, claim)
            except _Damaged as error:
                log.warning(
                    "event=checkpoint_damaged run=%s rank=%d round=%d folder=%s reason=%s",
                    self._owner.run_id, self._owner.rank, round_index, folder, error,
                )  # fmt: skip
        return None

    def write(self, round_index: int, state: Mapping[str, Any]) -> None:
        """Copy `state` now and write it while the caller goes on; waits for the write before this one.

        Tensors below `state`'s key "shared" are the caller's gift and aren't copied.
        Raises CheckpointNotWritten where the one before couldn't be.
        """
        self.finish()
        tensors: Tensors = {}
        tree = {name: pack(part, name, tensors, owned=name == "shared") for name, part in state.items()}
        self._thread = threading.Thread(
            target=self._write,
            args=(round_index, tree, tensors),
            name=f"checkpoint-{round_index}",
            daemon=True,
        )
        self._thread.start()

    def finish(self, timeout_s: float | None = None) -> None:
        """Return when the last checkpoint is on the disk, or after `timeout_s`.

        Raises CheckpointNotWritten where it couldn't be written.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._failure is not None:
            raise CheckpointNotWritten(
                f"rank {self._owner.rank}: no checkpoint in {self._folder}: {self._failure}. Is the "
                f"disk full? It holds {KEPT + 1} checkpoints, each 5 times the model in float32: volume_gb."
            ) from self._failure

    def _found(self) -> dict[tuple[int, int], Path]:
        """By (round, claim): every folder with a checkpoint's name."""
        if not self._folder.is_dir():
            return {}
        named = ((_FOLDER.fullmatch(path.name), path) for path in self._folder.iterdir())
        return {(int(match[1]), int(match[2])): path for match, path in named if match}

    def _read(self, folder: Path, round_index: int, claim: int) -> Checkpoint:
        index = self._index(folder)
        whose = {**asdict(self._owner), "round": round_index, "claim": claim}
        for name, ours in whose.items():
            if index.get(name) != ours:
                raise ForeignCheckpoint(
                    f"rank {self._owner.rank}: {folder} is another's: its {name} is "
                    f"{index.get(name)!r} where {ours!r} belongs. Give each rank of each run a folder "
                    "of its own."
                )
        for name in (STATE, TENSORS):
            expected = index["files"].get(name)
            if (found := _described(folder / name)) != expected:
                raise _Damaged(f"{name} is {found} where its index says {expected}")
        try:
            tensors = safetensors.torch.load_file(folder / TENSORS)
            tree = json.loads((folder / STATE).read_text())
            state = {name: unpack(part, tensors) for name, part in tree.items()}
        except (SafetensorError, ValueError, KeyError, OSError) as error:
            raise _Damaged(f"can't be read: {error!r}") from error
        return Checkpoint(folder, round_index, claim, state)

    def _index(self, folder: Path) -> dict[str, Any]:
        try:
            document = json.loads((folder / INDEX).read_bytes())
            index, crc = document["index"], document["crc64nvme"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise _Damaged(f"{INDEX}: {error!r}") from error
        if not isinstance(index, dict) or _crc(_canonical(index)) != crc:
            raise _Damaged(f"{INDEX} is not what its checksum says")
        return index

    def _write(self, round_index: int, tree: dict[str, Any], tensors: Tensors) -> None:
        # Named by claim: an earlier process of this rank may still be writing.
        target = self._folder / f"round_{round_index:06d}.c{self._claim}"
        unfinished = target.with_name(_UNFINISHED + target.name)
        try:
            self._make(target, unfinished, round_index, tree, tensors)
            self._prune()
        except Exception as error:  # noqa: BLE001 - raised on the thread that needs the checkpoint
            self._failure = error
            shutil.rmtree(unfinished, ignore_errors=True)  # a full disk must not stay full of it

    def _make(
        self, target: Path, unfinished: Path, round_index: int, tree: dict[str, Any], tensors: Tensors
    ) -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)  # damaged, or it would have been loaded and not made again
        unfinished.mkdir(parents=True)
        safetensors.torch.save_file(tensors, unfinished / TENSORS)
        (unfinished / STATE).write_text(json.dumps(tree))
        files = {name: _described(unfinished / name) for name in (STATE, TENSORS)}
        index = {**asdict(self._owner), "round": round_index, "claim": self._claim, "files": files}
        document = {"index": index, "crc64nvme": _crc(_canonical(index))}
        (unfinished / INDEX).write_text(json.dumps(document))
        for path in (*unfinished.iterdir(), unfinished):
            _to_disk(path)
        unfinished.rename(target)
        _to_disk(self._folder)

    def _prune(self) -> None:
        """Keep the newest two, and no remains of an earlier process's unfinished one."""
        found = self._found()
        for key in sorted(found)[:-KEPT]:
            shutil.rmtree(found[key], ignore_errors=True)
        for path in self._folder.glob(f"{_UNFINISHED}*"):
            match = _FOLDER.fullmatch(path.name.removeprefix(_UNFINISHED))
            if match and int(match[2]) < self._claim:
                shutil.rmtree(path, ignore_errors=True)


def _described(path: Path) -> dict[str, Any] | None:
    """Length and checksum of a file, as an index holds them; None where it is missing."""
    crc = size_bytes = 0
    try:
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                crc, size_bytes = checksums.crc64nvme(data, crc), size_bytes + len(data)
    except FileNotFoundError:
        return None
    return {"bytes": size_bytes, "crc64nvme": f"{crc:016x}"}


def _canonical(index: Mapping[str, Any]) -> bytes:
    return json.dumps(index, sort_keys=True).encode()


def _crc(data: bytes) -> str:
    return f"{checksums.crc64nvme(data):016x}"


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
