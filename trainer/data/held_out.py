"""What is never trained on: sequences to evaluate on, and the yardstick beside them."""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from trainer.data.data_set import DataSet
from trainer.data.documents import Document
from trainer.data.shares import hash_of
from trainer.data.tokens import Ids
from trainer.failures import BadDataSet
from trainer.model import VOCABULARY

EVAL_SEQUENCES: Final = 64
POOL_TOKENS: Final = 2**20  # held-out tokens that are read, to choose the sequences from
BIGRAM_TOKENS: Final = 2**24  # training tokens that are counted: enough for pairs of bytes


def held_out_windows(data: DataSet, seq_len: int, count: int = EVAL_SEQUENCES) -> torch.Tensor:
    """Up to `count` held-out sequences, token ids of shape (sequences, seq_len), int64.

    The same on every rank: evenly spread over the first POOL_TOKENS of the held-out files in the
    order of a hash. Packed as training sequences are. Raises BadDataSet where there is not one.
    """
    source = data.validation or data.source
    everything = data.validation is not None
    chosen = data.held_out.files
    files = [file for file in source.files if everything or chosen is None or file.name in chosen]
    files.sort(key=lambda file: hash_of(file.name))
    wanted = (lambda *_: True) if everything else data.held_out.has
    pool, parts = 0, []
    joined = everything or chosen is not None
    for document in data.reader.documents(source, files, wanted, joined=joined):
        parts.append(document.ids)
        pool += len(document.ids)
        if pool >= max(POOL_TOKENS, count * seq_len):
            break
    windows = pool // seq_len
    if windows == 0:
        raise BadDataSet(
            f"{source.parameter} {source.uri}: its held-out part has {pool} tokens, less than one sequence "
            f"of {seq_len}. Raise held_out_share, give more data, or name other data by validation_uri."
        )
    tokens = torch.from_numpy(np.concatenate(parts)[: windows * seq_len].reshape(windows, seq_len))
    return tokens[torch.linspace(0, windows - 1, min(windows, count)).long()].long()


def bigram_loss(data: DataSet, windows: torch.Tensor) -> float | None:
    """Nats per token of `windows` under a bigram model counted on training text, add-one smoothed.

    The yardstick of a run on bytes: a model that has learnt anything beyond pairs of bytes is
    below it. Scores the positions that the model is scored on, all but the first of each window.
    None for other tokenizers, whose pairs are too many to count.
    """
    if not data.reader.tokens.are_bytes:
        return None
    share = data.share(0, 1)
    documents = data.reader.documents(data.source, share.files, share.has, joined=not share.by_rows)
    counts = np.zeros(VOCABULARY * VOCABULARY, dtype=np.int64)
    waiting: list[Document] = []
    counted, held = 0, 0
    last = np.empty(0, dtype=np.int32)
    for document in documents:
        waiting.append(document)
        held += len(document.ids)
        counted += len(document.ids)
        if held >= POOL_TOKENS or counted >= BIGRAM_TOKENS:
            last = _count(counts, last, waiting)
            waiting, held = [], 0
        if counted >= BIGRAM_TOKENS:
            break
    _count(counts, last, waiting)
    smoothed = torch.from_numpy(counts).view(VOCABULARY, VOCABULARY).double() + 1
    log_probability = (smoothed / smoothed.sum(dim=1, keepdim=True)).log()
    return -log_probability[windows[:, :-1], windows[:, 1:]].mean().item()


def _count(counts: npt.NDArray[np.int64], last: Ids, documents: list[Document]) -> Ids:
    """Add the pairs of the text that goes on after `last`; its own last token, for the next call."""
    tokens = np.concatenate([last, *(document.ids for document in documents)])
    pairs = tokens[:-1] * VOCABULARY + tokens[1:]  # below 2**17
    counts += np.bincount(pairs, minlength=len(counts))
    return tokens[-1:]
