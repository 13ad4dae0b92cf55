"""Rows and files that can't be used: counted, named by file and line, and too many an error."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.sets import PACKERS, batches, opened, write
from tests.trainer.data.test_formats import beside, documents
from trainer.failures import BadDataSet
from trainer.model import build_tokenizer
from trainer.rendezvous.errors import AccessDenied

GOOD = b'{"text": "good"}'
BAD_LINES = [
    (b'{"text": "cut', "broken JSON: Unterminated string starting at: line 1 column 10 (char 9)"),
    (b'{"txt": "a", "id": 1}', "no field 'text', only 'txt', 'id'"),
    (b'{"text": ""}', "field 'text' is empty"),
    (b'{"text": " \\n"}', "field 'text' is empty"),
    (b'{"text": null}', "field 'text' is empty"),
    (b'{"text": []}', "field 'text' is empty"),
    (b'{"text": 7}', "field 'text' is neither text nor a list of messages (role, content)"),
    (b'{"text": [{"content": "a"}]}', "field 'text' is neither text nor a list of messages (role, content)"),
    (b'{"text": "\xe9t\xe9"}', "not UTF-8 at byte 11"),
    (b'{"text": "\\ud800"}', "field 'text' is not Unicode text"),
    (b"", "empty line"),
    (b'["text"]', "not a JSON object on one line"),
    (b'{"text": "a", "id": ' + b"1" * 5000 + b"}", "broken JSON: Exceeds the limit (4300 digits)"),
    (b"[" * 100_000, "broken JSON: maximum recursion depth exceeded"),
]


def lines(folder: Path, *rows: bytes, name: str = "rows.jsonl") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"\n".join(rows) + b"\n")


@pytest.mark.parametrize(("line", "problem"), BAD_LINES)
def test_a_bad_line_is_named_and_left_out_and_too_many_are_an_error(
    line: bytes, problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines(tmp_path / "set", GOOD, line, GOOD)
    kept = opened(tmp_path / "set", max_bad_rows=0.34, validation_uri=beside(tmp_path))
    assert documents(kept) == ["good", "good"]
    assert f"event=bad_row at=rows.jsonl:2 problem={problem!r}"[:60] in caplog.text
    assert "event=bad_rows bad=1 of=3" in caplog.text
    strict = opened(tmp_path / "set", max_bad_rows=0.33, validation_uri=beside(tmp_path))
    with pytest.raises(BadDataSet) as error:
        documents(strict)
    expected = (
        f"dataset_uri {tmp_path}/set: 1 of 3 rows read can't be used, more than max_bad_rows 0.33 allows. "
        f"The first: rows.jsonl:2: {problem}"
    )
    assert str(error.value).startswith(expected)
    assert "set text_field (now 'text') to the field that holds the text" in str(error.value)


CHAT = (
    "{% for m in messages %}"
    "{{ raise_exception('no ' + m.role) if m.role == 'tool' }}{{ m.content }}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("chat", "problem"),
    [
        ([{"role": "tool", "content": "a"}], "the chat template refuses it: no tool"),
        ([{"role": "user", "content": " "}], "the chat template makes nothing of it"),
        ([{"role": "user", "content": "\ud800"}], "its messages are not Unicode text"),
    ],
)
def test_a_bad_chat_is_named(
    chat: list[dict[str, str]], problem: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = [{"role": "user", "content": "good"}]
    lines(tmp_path / "set", *(json.dumps({"text": row}).encode() for row in (good, chat, good)))
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT
    data = opened(tmp_path / "set", max_bad_rows=0.34, validation_uri=beside(tmp_path), tokenizer=tokenizer)
    assert documents(data) == ["good", "good"]
    assert f"event=bad_row at=rows.jsonl:2 problem={problem!r}" in caplog.text


def test_a_bad_text_file_is_named(tmp_path: Path) -> None:
    lines(tmp_path / "set", "größe".encode("latin-1"), name="a.txt")
    lines(tmp_path / "set", b"  ", name="b.md")
    lines(tmp_path / "set", b"good", name="c.txt")
    with pytest.raises(BadDataSet, match=r"2 of 3 rows .*a.txt:1: not UTF-8 at byte 3; b.md:1: empty"):
        documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (pa.array(["good", None]), "field 'text' is empty"),
        (pa.array(["good", ""]), "field 'text' is empty"),
        (pa.array([3, 4]), "field 'text' is neither text nor a list of messages"),
        (pa.array([b"good", b"\xff"]).view(pa.string()), "not UTF-8 at byte 1"),
    ],
)
def test_a_bad_parquet_row_is_named(values: Any, problem: str, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"text": values}), tmp_path / "set" / "a.parquet")
    with pytest.raises(BadDataSet, match=rf"a.parquet:[12]: {problem}"):
        documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))


def test_a_parquet_file_without_the_field_says_what_it_has(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.parquet", ["good"] * 9, field="body")
    with pytest.raises(BadDataSet, match=r"9 of 9 rows .*a.parquet:1: no field 'text', only 'id', 'body'"):
        documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))


def test_few_bad_rows_wait_for_the_end_of_the_pass_and_many_do_not(tmp_path: Path) -> None:
    """One bad row of the first two is half; of 200 it is nothing. More than a share of 1000 is too many."""
    lines(tmp_path / "few", b"broken", *[GOOD] * 199)
    assert len(documents(opened(tmp_path / "few", validation_uri=beside(tmp_path)))) == 199
    lines(tmp_path / "many", *[b"broken"] * 11, *[GOOD] * 2000)
    with pytest.raises(BadDataSet, match=r"11 of 11 rows read .*rows.jsonl:5: [^;]*\. Mend them"):
        documents(opened(tmp_path / "many", validation_uri=beside(tmp_path)))


def test_a_rank_that_resumes_late_in_an_epoch_judges_by_no_part_of_it(tmp_path: Path) -> None:
    lines(tmp_path / "set", *[GOOD] * 298, b"broken", GOOD)
    data = opened(tmp_path / "set", validation_uri=beside(tmp_path))
    options = {"seq_len": 5, "batch_size": 1, "shuffle_buffer": 1}
    whole = batches(data, **options)
    for _ in range(297):
        whole.next_batch()
    late = batches(data, **options)
    late.load_state_dict(whole.state_dict())
    for _ in range(10):  # over the broken row and the epoch's end
        assert late.next_batch().tolist() == whole.next_batch().tolist()


@pytest.mark.parametrize("name", [f"rows.jsonl{packing}" for packing in PACKERS if packing])
def test_a_cut_off_file_is_named(name: str, tmp_path: Path) -> None:
    write(tmp_path / "set" / name, [f"{number:09d}" for number in range(2000)])
    whole = (tmp_path / "set" / name).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"this is " + whole[8:]):
        (tmp_path / "set" / name).write_bytes(damaged)
        with pytest.raises(
            BadDataSet, match=f"dataset_uri .*: {name} is cut off or damaged .*Upload it again"
        ):
            documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.parquet.gz"])
def test_a_damaged_parquet_file_is_named(name: str, tmp_path: Path) -> None:
    raw = b"PAR1" + bytes(100)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    with pytest.raises(BadDataSet, match=f"{name} is cut off or damaged"):
        documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))


def test_a_file_that_may_not_be_read_is_denied_and_one_that_went_is_named(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.jsonl", ["text"])
    data = opened(tmp_path / "set", validation_uri=beside(tmp_path))

    class Refusing:
        def cat(self, paths: list[str]) -> dict[str, bytes]:
            raise PermissionError("403")

    object.__setattr__(data.source, "fs", Refusing())
    with pytest.raises(AccessDenied, match=r"dataset_uri .*/set: reading was denied \(403\)"):
        documents(data)
    data = opened(tmp_path / "set", validation_uri=beside(tmp_path))
    (tmp_path / "set" / "a.jsonl").unlink()
    with pytest.raises(BadDataSet, match=r"a.jsonl is gone since it was listed"):
        documents(data)


def test_a_pretty_printed_json_file_says_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.json").write_text(json.dumps([{"text": "a"}], indent=2))
    with pytest.raises(BadDataSet, match=".json and .jsonl are read as one JSON object a line"):
        documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))
