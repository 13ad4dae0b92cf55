"""One pass over files: their usable rows as token ids, the unusable ones counted and named."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from trainer.data.formats import Row, rows
from trainer.data.sources import DataFile, Source
from trainer.data.tokens import Ids, Tokens, Unusable
from trainer.failures import BadDataSet

log = logging.getLogger(__name__)

EXAMPLES: Final = 5  # bad rows that are named
EARLY_ROWS: Final = 1000  # before so many rows a few bad ones say nothing; the end of a pass does
TOGETHER_TEXTS: Final = 256  # a call of the tokenizer, for its threads to share
TOGETHER_CHARACTERS: Final = 2**20


@dataclass(frozen=True)
class Document:
    """Token ids of one row, which is row `row` of file number `file` of the pass."""

    file: int
    row: int
    ids: Ids


@dataclass
class RowCounts:
    """The bad rows of one pass, and whether they are too many."""

    source: Source
    max_share: float
    advice: str
    rows: int = 0
    bad: int = 0
    examples: list[str] = field(default_factory=list)

    def bad_row(self, file: DataFile, row: int, problem: str) -> None:
        """Count one. Raises BadDataSet once they are too many, whatever is still to come."""
        self.bad += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{file.name}:{row + 1}: {problem}")
            log.warning("event=bad_row at=%s:%d problem=%r", file.name, row + 1, problem)
        self.check(max(self.rows, EARLY_ROWS))

    def check(self, rows: int) -> None:
        """Raise BadDataSet where the bad rows are more than their share of `rows`."""
        if self.bad > self.max_share * rows:
            raise BadDataSet(
                f"{self.source.parameter} {self.source.uri}: {self.bad} of {self.rows} rows read can't be "
                f"used, more than max_bad_rows {self.max_share:g} allows. The first: "
                f"{'; '.join(self.examples)}. {self.advice}"
            )


@dataclass(frozen=True)
class Reader:
    """How rows become documents, for training and held-out data alike."""

    tokens: Tokens
    text_field: str
    piece_bytes: int
    max_bad_rows: float

    def documents(
        self,
        source: Source,
        files: Sequence[DataFile],
        wanted: Callable[[str, int], bool],
        *,
        joined: bool,
        first_file: int = 0,
        first_row: int = 0,
    ) -> Iterator[Document]:
        """The documents of the rows that are `wanted`, from one row of one file to the last file.

        `joined`: pieces of a text that follow one another are one document, with one end. Raises
        BadDataSet where too many rows can't be used, and where a file can't be read.
        """
        counts = RowCounts(source, self.max_bad_rows, self._advice())
        texts: list[tuple[int, int, str, bool]] = []
        characters = 0
        for at, (file, stream) in enumerate(source.open_each(files[first_file:]), first_file):
            name = file.name
            with source.explained(name):
                for row in rows(
                    file,
                    stream,
                    text_field=self.text_field,
                    piece_bytes=self.piece_bytes,
                    first=first_row if at == first_file else 0,
                    wanted=lambda number, name=name: wanted(name, number),  # type: ignore[misc]
                ):
                    counts.rows += 1
                    text = self._text(row, file, counts)
                    if text is None:
                        continue
                    texts.append((at, row.number, text, not (joined and row.continued)))
                    characters += len(text)
                    if len(texts) == TOGETHER_TEXTS or characters > TOGETHER_CHARACTERS:
                        yield from self._encoded(texts)
                        texts, characters = [], 0
        yield from self._encoded(texts)
        if (first_file, first_row) == (0, 0):  # a part of a pass may have more than its share of bad rows
            counts.check(counts.rows)
        if counts.bad:
            log.warning("event=bad_rows bad=%d of=%d data=%s", counts.bad, counts.rows, source.uri)

    def _text(self, row: Row, file: DataFile, counts: RowCounts) -> str | None:
        problem = row.problem
        if row.text is not None:
            try:
                return self.tokens.text(row.text)
            except Unusable as error:
                problem = str(error)
        counts.bad_row(file, row.number, problem)
        return None

    def _encoded(self, texts: Sequence[tuple[int, int, str, bool]]) -> Iterator[Document]:
        if texts:
            encoded = self.tokens.encode([t[2] for t in texts], [t[3] for t in texts])
            for (file, row, _, _), ids in zip(texts, encoded, strict=True):
                yield Document(file, row, ids)

    def _advice(self) -> str:
        return (
            f"Mend them, set text_field (now {self.text_field!r}) to the field that holds the text, or raise "
            "max_bad_rows. Text is UTF-8; .json and .jsonl are read as one JSON object a line."
        )
