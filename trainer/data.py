"""Text as bytes: a folder of files, split into training and held-out, then into ranks.

A file is held out, whole, when the hash of its path says so (one in ten), so the split is the
same on every rank and does not leak. Batches are a function of (seed, rank, batches taken) and
nothing else: a replica that resumes at any step gets the batches it would have had.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import fsspec
import numpy as np
import torch

from trainer.failures import BadDataSet
from trainer.layout import TEXT_SUFFIXES
from trainer.model import BYTE_OFFSET
from trainer.parameter_kinds import BUILT_IN_DATA
from trainer.rendezvous.errors import AccessDenied

HELD_OUT_ONE_IN: Final = 10
EVAL_SEQUENCES: Final = 64


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes held out, uint8, shape (bytes,)."""

    uri: str
    train: torch.Tensor
    held_out: torch.Tensor


def load_corpus(uri: str) -> Corpus:
    """Read every text file below `uri` (a local folder, file:// or s3://).

    Raises BadDataSet naming the URI where it is missing, has no text files or too little text;
    AccessDenied where the store refuses.
    """
    # Built in is the trainer's own source: real text that lies wherever the trainer does.
    source = str(Path(__file__).parent) if uri == BUILT_IN_DATA else uri
    files = _read_files(source)
    held_out = {name for name in files if _hash(name) % HELD_OUT_ONE_IN == 0}
    if not held_out:  # few files: hold out the one that the hash likes least
        held_out = {min(files, key=_hash)}
    if len(files) < 2:
        raise BadDataSet(f"dataset_uri {uri}: needs at least two text files, one of them to hold out")
    return Corpus(
        uri,
        _join(files[name] for name in sorted(files.keys() - held_out)),
        _join(files[name] for name in sorted(held_out)),
    )


class Batches:
    """The training sequences of one rank: every window of its share once an epoch, shuffled."""

    def __init__(
        self, corpus: Corpus, *, rank: int, world_size: int, seq_len: int, batch_size: int, seed: int
    ) -> None:
        windows = len(corpus.train) // seq_len // world_size
        if windows < batch_size:
            raise BadDataSet(
                f"dataset_uri {corpus.uri}: {len(corpus.train)} bytes give each of {world_size} ranks "
                f"{windows} sequences of {seq_len} tokens, fewer than one batch of {batch_size}"
            )
        start = rank * windows * seq_len
        self._tokens = corpus.train[start : start + windows * seq_len].view(windows, seq_len)
        self._batch_size = batch_size
        self._seed = (seed * 1_000_003 + rank) % 2**63
        self._taken = 0
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.long)

    def next_batch(self) -> torch.Tensor:
        """This rank's next batch: token ids of shape (batch_size, seq_len), int64."""
        per_epoch = len(self._tokens) // self._batch_size
        epoch, position = divmod(self._taken, per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self._seed + 7919 * epoch)
            self._order = torch.randperm(len(self._tokens), generator=generator)
            self._epoch = epoch
        self._taken += 1
        rows = self._order[position * self._batch_size : (position + 1) * self._batch_size]
        return self._tokens[rows].long() + BYTE_OFFSET

    def seek(self, micro_batch_index: int) -> None:
        """Go on as if so many batches had been taken."""
        self._taken = micro_batch_index

    def state_dict(self) -> dict[str, int]:
        return {"micro_batches_taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._taken = state["micro_batches_taken"]


def held_out_windows(corpus: Corpus, seq_len: int) -> torch.Tensor:
    """Up to EVAL_SEQUENCES held-out sequences, evenly spread; bytes, shape (sequences, seq_len)."""
    windows = len(corpus.held_out) // seq_len
    if windows == 0:
        raise BadDataSet(f"dataset_uri {corpus.uri}: its held-out files hold less than {seq_len} bytes")
    chosen = torch.linspace(0, windows - 1, min(windows, EVAL_SEQUENCES)).long()
    return corpus.held_out[: windows * seq_len].view(windows, seq_len)[chosen]


def bigram_loss(corpus: Corpus, windows: torch.Tensor) -> float:
    """Nats per byte of `windows` under a bigram model counted on the training bytes, add-one smoothed.

    The yardstick of a run: a model that has learnt anything beyond pairs of bytes is below it.
    Scores the positions that the model is scored on, all but the first of each window.
    """
    pairs = corpus.train[:-1].long() * 256 + corpus.train[1:].long()
    counts = torch.bincount(pairs, minlength=256 * 256).view(256, 256).double() + 1
    log_probability = (counts / counts.sum(dim=1, keepdim=True)).log()
    return -log_probability[windows[:, :-1].long(), windows[:, 1:].long()].mean().item()


def _read_files(source: str) -> dict[str, bytes]:
    try:
        fs, root = fsspec.core.url_to_fs(source)
        paths = [path for path in fs.find(root) if path.endswith(TEXT_SUFFIXES)]
        contents = fs.cat(paths) if paths else {}
    except FileNotFoundError as error:
        raise BadDataSet(f"dataset_uri {source}: there is no such folder or bucket ({error})") from error
    except PermissionError as error:
        raise AccessDenied(f"dataset_uri {source}: reading was denied ({error})") from error
    if not contents:
        raise BadDataSet(f"dataset_uri {source}: no text files ({', '.join(TEXT_SUFFIXES)}) below it")
    prefix = len(root.rstrip("/")) + 1
    return {path[prefix:]: contents[path] for path in paths}


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _join(contents: Iterator[bytes]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(b"\n".join(contents), dtype=np.uint8).copy())
