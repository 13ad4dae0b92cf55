"""Batches of one rank, shuffled, and a place to return to after each.

The stream is read in blocks of `shuffle_buffer` sequences; each block is shuffled whole, by its
own seed. A sliding buffer would mix a little better, but what it holds depends on all that went
before. A block is known from where it begins: so a few numbers say where a rank is, and reading
one block again brings it back exactly there.

An epoch is a rank's own: one pass over its share. Shares differ a little in tokens, so ranks
need not end an epoch at the same step.
"""

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from trainer.data.data_set import DataSet
from trainer.data.stream import Place, TokenStream
from trainer.data.tokens import Ids
from trainer.failures import BadDataSet


@dataclass(frozen=True)
class Block:
    """Shuffled sequences (n, seq_len), int32, the first of them number `first` of the stream."""

    start: Place
    first: int
    sequences: Ids


class Batches:
    """The training batches of one rank, in an order that (data, seed, rank, world size) determine."""

    def __init__(
        self,
        data: DataSet,
        *,
        rank: int,
        world_size: int,
        seq_len: int,
        batch_size: int,
        seed: int,
        shuffle_buffer: int,
    ) -> None:
        self._data, self._share = data, data.share(rank, world_size)
        self._seq_len, self._batch_size = seq_len, batch_size
        self._seed, self._shuffle_buffer = seed, shuffle_buffer
        # What a state belongs to; batch_size is not in it, since sequences don't depend on it.
        decides = f"{data.digest()}:{rank}:{world_size}:{seq_len}:{seed}:{shuffle_buffer}"
        self._identity = hashlib.sha256(decides.encode()).hexdigest()[:16]
        self._shuffle_seed = int(self._identity, 16)
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._next: Future[Block] | None = None
        self._block: Block | None = None
        self._start, self._first, self._taken = Place(), 0, 0  # _first: of what _stream gives next
        self._go_to(Place(), 0)

    def next_batch(self) -> torch.Tensor:
        """The next token ids, int64 of shape (batch_size, seq_len).

        Raises BadDataSet where too many rows can't be used, a file can't be read, or the share
        is smaller than a batch.
        """
        parts, missing = [], self._batch_size
        while missing:
            while self._block is None or self._taken >= len(self._block.sequences):
                self._advance()
            part = self._block.sequences[self._taken : self._taken + missing]
            self._taken += len(part)
            missing -= len(part)
            parts.append(part)
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins: a few numbers, for JSON."""
        start, first = self._block_begin()
        return {"identity": self._identity, **asdict(start), "first": first, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken: the batches that follow are those that followed then.

        Raises BadDataSet where it is of other data, parameters or ranks.
        """
        if state["identity"] != self._identity:
            source = self._data.source
            raise BadDataSet(
                f"{source.parameter} {source.uri}: its files, or rank, n_replicas, seed, seq_len, "
                "shuffle_buffer, text_field or what is held out, are not those of the checkpoint; a data "
                "position of other data means nothing. Put them back, or begin without the checkpoint."
            )
        place = Place(**{name: int(state[name]) for name in ("epoch", "file", "row", "token")})
        self._go_to(place, int(state["first"]))
        self._taken = int(state["taken"])

    def seek(self, micro_batch_index: int) -> None:
        """Go to where `micro_batch_index` batches from the start have been taken.

        Without a state that means reading and tokenising what lies between: forwards from the
        block at hand, else from the start.
        """
        target = micro_batch_index * self._batch_size
        begin = self._block_begin()
        self._go_to(*(begin if begin[1] <= target else (Place(), 0)))
        while self._first < target:
            start, first = self._stream.place, self._first
            self._first += len(self._stream.take(self._shuffle_buffer))
            if self._first > target:
                self._go_to(start, first)
                self._taken = target - first
                return
        self._start = self._stream.place

    def _block_begin(self) -> tuple[Place, int]:
        return (self._start, self._first) if self._block is None else (self._block.start, self._block.first)

    def _go_to(self, place: Place, first: int) -> None:
        if self._next is not None and not self._next.cancel():
            self._next.exception()  # wait: it reads from the old stream and moves _first
        self._stream = TokenStream(
            self._data,
            self._share,
            seed=self._seed,
            seq_len=self._seq_len,
            least_tokens=self._batch_size * self._seq_len,
            start=place,
        )
        self._next, self._block = None, None
        self._start, self._first, self._taken = place, first, 0

    def _advance(self) -> None:
        """Take the next block, and have the one after it read meanwhile."""
        if self._block is not None:
            self._taken = 0
        self._block = self._read_block() if self._next is None else self._next.result()
        self._next = self._ahead.submit(self._read_block)

    def _read_block(self) -> Block:
        start, first = self._stream.place, self._first
        sequences = self._stream.take(self._shuffle_buffer)
        order = np.random.Generator(np.random.Philox([self._shuffle_seed, first])).permutation(len(sequences))
        self._first += len(sequences)
        return Block(start, first, sequences[order])
