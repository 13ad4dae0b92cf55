"""One rank's tokens, one epoch after another, cut into sequences; any place in it can be returned to.

Documents are strung together, an end-of-sequence token after each, and cut every seq_len tokens:
a sequence may hold the end of one document and the beginning of the next. Attention crosses that
boundary, as is usual in pretraining; the end-of-sequence token tells the model. What is left over
at the end of an epoch begins the next one's first sequence, so no token is lost.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trainer.data.data_set import DataSet
from trainer.data.documents import Document
from trainer.data.shares import Share, hash_of
from trainer.data.sources import DataFile
from trainer.data.tokens import Ids
from trainer.failures import BadDataSet


@dataclass(frozen=True)
class Place:
    """A token of the stream: of which epoch, file (in that epoch's order), row and token of the row."""

    epoch: int = 0
    file: int = 0
    row: int = 0
    token: int = 0


class TokenStream:
    """The sequences of one rank from `start` on, without end.

    `least_tokens` is what an epoch must have: with less a batch would hold a token twice.
    """

    def __init__(
        self, data: DataSet, share: Share, *, seed: int, seq_len: int, least_tokens: int, start: Place
    ) -> None:
        self._data, self._share, self._seed = data, share, seed
        self._seq_len, self._least_tokens = seq_len, least_tokens
        self._documents = self._endless(start)
        self._pending: deque[tuple[int, Document, int]] = deque()  # epoch, document, tokens already taken
        self._have = 0
        self._after = start

    @property
    def place(self) -> Place:
        """Where the next sequence begins."""
        if not self._pending:
            return self._after
        epoch, document, taken = self._pending[0]
        return Place(epoch, document.file, document.row, taken)

    def take(self, sequences: int) -> Ids:
        """The next sequences, int32 of shape (at most `sequences`, seq_len), at least one.

        Fewer where the epoch ends: sequences of two epochs are never taken together, but for
        the one on the border. Raises BadDataSet as Reader.documents does, and where the share
        is too small.
        """
        wanted = sequences * self._seq_len
        while True:
            while self._have < wanted:
                found = next(self._documents)
                if found is None:  # the epoch's end
                    break
                self._pending.append(found)
                self._have += len(found[1].ids) - found[2]
            if usable := min(self._have // self._seq_len, sequences):
                return self._pop(usable * self._seq_len).reshape(usable, self._seq_len)

    def _pop(self, tokens: int) -> Ids:
        self._have -= tokens
        parts = []
        while tokens:
            epoch, document, taken = self._pending.popleft()
            part = document.ids[taken : taken + tokens]
            parts.append(part)
            tokens -= len(part)
            self._after = Place(epoch, document.file, document.row + 1)
            if taken + len(part) < len(document.ids):
                self._pending.appendleft((epoch, document, taken + len(part)))
        return np.concatenate(parts)

    def _endless(self, start: Place) -> Iterator[tuple[int, Document, int] | None]:
        """Documents as (epoch, document, tokens to leave out), and None at the end of each epoch."""
        place = start
        while True:
            tokens = 0
            for document in self._data.reader.documents(
                self._data.source,
                self._order(place.epoch),
                self._share.has,
                joined=not self._share.by_rows,
                first_file=place.file,
                first_row=place.row,
            ):
                same = (document.file, document.row) == (place.file, place.row)
                tokens += len(document.ids)
                yield place.epoch, document, place.token if same else 0
            if (place.file, place.row, place.token) == (0, 0, 0) and tokens < self._least_tokens:
                raise self._too_small(tokens)
            yield None
            place = Place(place.epoch + 1)

    def _order(self, epoch: int) -> list[DataFile]:
        return sorted(self._share.files, key=lambda file: hash_of(f"{self._seed}:{epoch}:{file.name}"))

    def _too_small(self, tokens: int) -> BadDataSet:
        source, share = self._data.source, self._share
        how = f"each of {share.of} ranks takes every {share.of}. row" if share.of > 1 else "by whole files"
        return BadDataSet(
            f"{source.parameter} {source.uri}: this rank's share of {len(source.files)} files ({how}) has "
            f"{tokens} tokens to train on, fewer than one batch of {self._least_tokens} (batch_size x "
            "seq_len). Give more data, or fewer n_replicas, or a smaller batch_size or seq_len."
        )
