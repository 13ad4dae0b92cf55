"""A data set as the run parameters name it: where its files are, and what of them is held out."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from trainer.data.documents import Reader
from trainer.data.shares import HeldOut, Share, hold_out, piece_bytes_of, share_of
from trainer.data.sources import Source, list_source
from trainer.data.tokens import Tokens


@dataclass(frozen=True)
class DataSet:
    """Files listed, nothing read yet. `validation` is where held-out data lies, if apart."""

    source: Source
    validation: Source | None
    held_out: HeldOut
    reader: Reader

    def share(self, rank: int, world_size: int) -> Share:
        return share_of(self.source, self.held_out, rank, world_size)

    def digest(self) -> str:
        """What decides which documents there are, and in which order: names, sizes, parameters."""
        files = [[file.name, file.bytes] for file in self.source.files]
        held_out = sorted(self.held_out.files) if self.held_out.files is not None else None
        reader = [self.reader.text_field, self.reader.piece_bytes, self.reader.tokens.identity]
        decides = [files, held_out, self.held_out.share, reader]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]


def open_data_set(
    dataset_uri: str,
    tokenizer: Any,
    *,
    validation_uri: str = "",
    held_out_share: float = 0.1,
    text_field: str = "text",
    max_bad_rows: float = 0.01,
) -> DataSet:
    """List the files of a data set. `tokenizer` is a transformers one; the rest are run parameters.

    Raises BadDataSet where there are none or the tokenizer can't close a document, AccessDenied
    where the store refuses.
    """
    source = list_source(dataset_uri, "dataset_uri")
    validation = list_source(validation_uri, "validation_uri") if validation_uri else None
    piece_bytes = piece_bytes_of(source.files)
    if validation is None:
        held_out = hold_out(source, held_out_share, piece_bytes)
    else:
        held_out = HeldOut(0.0, frozenset())
    reader = Reader(Tokens(tokenizer), text_field, piece_bytes, max_bad_rows)
    return DataSet(source, validation, held_out, reader)
