"""Whose rows are whose: held out, or one rank's to train on. A function of names and sizes alone.

Every rank computes the same split from the listing, reading nothing. Held out are whole files
where there are enough of them, else rows. Ranks share by whole files where that balances, so
that each opens only its own; else by rows, and each reads through all files, using every
n-th row.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainer.data.sources import DataFile, Source
from trainer.layout import TEXT_SUFFIXES

BALANCED: Final = 1.25  # files are shared whole if the largest share is at most this much the smallest
WHOLE_TEXTS: Final = 64  # text files; fewer are cut into pieces, since then a piece is what can be shared
PIECES: Final = 256  # about so many, of few files
PIECE_BYTES: Final = (2**10, 2**20)  # at least and at most; the most is also what is held in memory


@dataclass(frozen=True)
class HeldOut:
    """Which rows are never trained on: those of `files`, or where that is None a share by hash."""

    share: float
    files: frozenset[str] | None

    def has(self, file: str, number: int) -> bool:
        if self.files is not None:
            return file in self.files
        # One row of every ten, say, and which by hash: a file of ten rows or more is sure to have one.
        block, place = divmod(number, round(1 / self.share))
        return place == hash_of(f"{file}:{block}") % round(1 / self.share)


def hold_out(source: Source, share: float, piece_bytes: int) -> HeldOut:
    """Hold out whole files if `share` of them is at least one, or each file is one text; else rows."""
    files = source.files
    one_row_each = all(f.kind in TEXT_SUFFIXES and f.name.endswith(f.kind) for f in files) and all(
        f.bytes <= piece_bytes for f in files
    )
    if len(files) * share < 1 and not (one_row_each and len(files) > 1):
        return HeldOut(share, None)
    chosen = {file.name for file in files if hash_of(file.name) < share * 2**64}
    # None, or all: with few files the hash may say either. Then it is the one that it likes least.
    if not 0 < len(chosen) < len(files):
        chosen = {min((file.name for file in files), key=hash_of)}
    return HeldOut(share, frozenset(chosen))


@dataclass(frozen=True)
class Share:
    """One rank's part of the training rows: `files`, and of them every `of`-th row (1: all)."""

    files: tuple[DataFile, ...]
    held_out: HeldOut
    rank: int
    of: int

    @property
    def by_rows(self) -> bool:
        """Rows that follow one another in a file need not follow one another in this share."""
        return self.of > 1 or self.held_out.files is None

    def has(self, file: str, number: int) -> bool:
        # From another row in each file, or rank 0 alone would get the first rows of short files.
        mine = self.of == 1 or (number + hash_of(file)) % self.of == self.rank
        return mine and not self.held_out.has(file, number)


def share_of(source: Source, held_out: HeldOut, rank: int, world_size: int) -> Share:
    """The rows of `rank`. Over all ranks each training row is in exactly one share."""
    files = [f for f in source.files if held_out.files is None or f.name not in held_out.files]
    loads = [0] * world_size
    given: list[list[DataFile]] = [[] for _ in range(world_size)]
    # Largest first, to whoever has least: Graham's rule, at most 4/3 of the best possible.
    for file in sorted(files, key=lambda f: (-f.bytes, f.name)):
        least = min(range(world_size), key=lambda r: (loads[r], r))
        loads[least] += file.bytes
        given[least].append(file)
    if max(loads) <= BALANCED * min(loads):
        return Share(tuple(sorted(given[rank], key=lambda f: f.name)), held_out, 0, 1)
    return Share(tuple(files), held_out, rank, world_size)


def piece_bytes_of(files: Sequence[DataFile]) -> int:
    """How long a piece of a text file may be: whole files where there are many, else a part of all."""
    low, high = PIECE_BYTES
    if len(files) >= WHOLE_TEXTS:
        return high
    return min(max(sum(file.bytes for file in files) // PIECES, low), high)


def hash_of(text: str) -> int:
    """64 bits of SHA-256: the same in every process and version."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
