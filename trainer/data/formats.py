"""Rows of files: a text file's pieces, the lines of JSON lines, the rows of Parquet.

A row is known by its file and its number from 0; people are told the number from 1, which for
JSON lines is the line. A row that can't be used says why, and counts as one.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, BinaryIO, Final

from trainer.data.sources import Damaged, DataFile
from trainer.layout import TEXT_SUFFIXES

READ_BYTES: Final = 2**20
PARQUET_BATCH_ROWS: Final = 256

Messages = list[dict[str, Any]]  # a chat: [{"role": ..., "content": ...}, ...]
Wanted = Callable[[int], bool]


@dataclass(frozen=True)
class Row:
    """One row: its `text`, or its `problem` in words. `continued`: the next row is the same document."""

    number: int
    text: str | Messages | None = None
    problem: str = ""
    continued: bool = False


def rows(
    file: DataFile, stream: BinaryIO, *, text_field: str, piece_bytes: int, first: int, wanted: Wanted
) -> Iterator[Row]:
    """The rows of `file` from number `first` on that are `wanted`, from its decompressed `stream`."""
    if file.kind in TEXT_SUFFIXES:
        yield from _pieces(stream, piece_bytes, first, wanted)
    elif file.kind == ".parquet":
        yield from _parquet(file, stream, text_field, first, wanted)
    else:
        for number, line in enumerate(lines(stream)):
            if number >= first and wanted(number):
                yield _json_row(number, line, text_field)


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends; the empty end after a last newline is none."""
    begun: list[bytes] = []  # of the line at hand: joined once, or a file of one line would take squared time
    while block := stream.read(READ_BYTES):
        end, *others = block.split(b"\n")
        begun.append(end)
        if others:
            yield b"".join(begun)
            yield from others[:-1]
            begun = [others[-1]]
    if rest := b"".join(begun):
        yield rest


def _pieces(stream: BinaryIO, piece_bytes: int, first: int, wanted: Wanted) -> Iterator[Row]:
    """A text file: one row, or above `piece_bytes` several, cut after a line where there is one."""
    number, rest, more = 0, b"", True
    while more:
        block = stream.read(max(piece_bytes - len(rest), 1) + 1)
        rest += block
        more = len(rest) > piece_bytes
        if not rest:
            return
        end = _cut(rest, piece_bytes) if more else len(rest)
        if number >= first and wanted(number):
            yield _text_row(number, rest[:end], continued=more)
        number, rest = number + 1, rest[end:]


def _cut(text: bytes, limit: int) -> int:
    """Where to cut at most `limit` bytes: after the last line end, else between two characters."""
    if line_end := text.rfind(b"\n", 0, limit) + 1:
        return line_end
    end = limit
    while end > limit - 4 and text[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        end -= 1
    return end if end > limit - 4 and end > 0 else limit


def _text_row(number: int, raw: bytes, *, continued: bool) -> Row:
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        return Row(number, problem=f"not UTF-8 at byte {error.start + 1}")
    return Row(number, text, continued=continued) if text.strip() else Row(number, problem="empty")


def _json_row(number: int, line: bytes, text_field: str) -> Row:
    try:
        text = line.removeprefix(codecs.BOM_UTF8).decode()
        if not text.strip():
            return Row(number, problem="empty line")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        return Row(number, problem=f"not UTF-8 at byte {error.start + 1}")
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a bare ValueError
        return Row(number, problem=f"broken JSON: {error}")
    if not isinstance(value, dict):
        return Row(number, problem="not a JSON object on one line")
    if text_field not in value:
        return _missing(text_field, value)(number)
    return _row(number, value[text_field], text_field)


def _parquet(file: DataFile, stream: BinaryIO, text_field: str, first: int, wanted: Wanted) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A decompressor can only go forward, and Parquet is read from its end.
        packed = not file.name.endswith(".parquet")
        table = pq.ParquetFile(pa.BufferReader(stream.read()) if packed else stream)
        there = text_field in table.schema_arrow.names
        missing = _missing(text_field, table.schema_arrow.names)
        begin = 0
        for group in range(table.num_row_groups):
            end = begin + table.metadata.row_group(group).num_rows
            if any(wanted(number) for number in range(max(begin, first), end)):
                values = _values(table, group, text_field) if there else repeat(None, end - begin)
                for number, value in enumerate(values, begin):
                    if number >= first and wanted(number):
                        yield _parquet_row(number, value, text_field) if there else missing(number)
            begin = end
    except pa.ArrowException as error:
        raise Damaged(str(error)) from error


def _values(table: Any, group: int, text_field: str) -> Iterator[Any]:
    for batch in table.iter_batches(PARQUET_BATCH_ROWS, row_groups=[group], columns=[text_field]):
        yield from batch.column(0)


def _missing(text_field: str, names: Iterable[str]) -> Callable[[int], Row]:
    problem = f"no field {text_field!r}, only {', '.join(map(repr, names)) or 'none'}"
    return lambda number: Row(number, problem=problem[:200])


def _parquet_row(number: int, value: Any, text_field: str) -> Row:
    try:
        return _row(number, value.as_py(), text_field)
    except UnicodeDecodeError as error:  # Parquet's writers don't all check
        return Row(number, problem=f"not UTF-8 at byte {error.start + 1}")


def _row(number: int, value: object, text_field: str) -> Row:
    if isinstance(value, str):
        if not value.strip():
            return Row(number, problem=f"field {text_field!r} is empty")
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON can write half a surrogate pair
            return Row(number, problem=f"field {text_field!r} is not Unicode text")
        return Row(number, value)
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return Row(number, value)
    if value is None or value == []:
        return Row(number, problem=f"field {text_field!r} is empty")
    return Row(number, problem=f"field {text_field!r} is neither text nor a list of messages (role, content)")


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item
