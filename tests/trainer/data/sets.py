"""Small data sets in every format, and what of them should come out."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from backports import zstd

from trainer.data import Batches, DataSet, open_data_set
from trainer.model import build_tokenizer

PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstd.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def numbered(count: int) -> list[str]:
    """Texts of 3 to 60 bytes, no part of one like a part of another."""
    return [
        f"<{number}>" + hashlib.sha256(str(number).encode()).hexdigest()[: 8 * (number * 7 % 8)]
        for number in range(count)
    ]


def write(path: Path, texts: Sequence[Any], *, field: str = "text", group_rows: int = 4) -> None:
    """Write rows in the format and compression that the name says; a text file is one row."""
    packing = path.suffix if path.suffix in PACKERS else ""
    kind = Path(path.name.removesuffix(packing)).suffix
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": range(len(texts)), field: texts}), sink, row_group_size=group_rows)
        raw = sink.getvalue().to_pybytes()
    elif kind in (".jsonl", ".json"):
        raw = "".join(json.dumps({"id": i, field: t}) + "\n" for i, t in enumerate(texts)).encode()
    else:
        (text,) = texts
        raw = text.encode()
    path.write_bytes(PACKERS[packing](raw))


def opened(folder: Path | str, **options: Any) -> DataSet:
    return open_data_set(str(folder), options.pop("tokenizer", None) or build_tokenizer(), **options)


def batches(data: DataSet, rank: int = 0, world_size: int = 1, **options: Any) -> Batches:
    given = {"seq_len": 8, "batch_size": 2, "seed": 0, "shuffle_buffer": 5} | options
    return Batches(data, rank=rank, world_size=world_size, **given)


def text_of(ids: Sequence[int]) -> str:
    """Text of byte tokens; | ends a document."""
    return bytes(b"|"[0] if one == 1 else one - 3 for one in ids).decode()
