"""Every format, plain and compressed, read into the documents that were written."""

import io
import json
from pathlib import Path

import pytest

from runs.upload_text import upload_text
from tests.trainer.data.sets import PACKERS, batches, numbered, opened, text_of, write
from trainer.data import DataSet, formats, held_out_windows, open_data_set
from trainer.failures import BadDataSet
from trainer.layout import DATA_SUFFIXES, ROW_SUFFIXES, TEXT_SUFFIXES
from trainer.model import build_tokenizer

TEXTS = numbered(30)


def documents(data: DataSet) -> list[str]:
    """Every training document, in the order of files and rows."""
    share = data.share(0, 1)
    found = data.reader.documents(data.source, share.files, share.has, joined=not share.by_rows)
    return text_of([one for document in found for one in document.ids.tolist()]).split("|")[:-1]


def beside(folder: Path) -> str:
    """A validation set, so that nothing of the other is held out."""
    write(folder / "held out" / "rows.jsonl", ["held out"])
    return str(folder / "held out")


def test_the_suffixes_are_those_of_the_formats() -> None:
    assert {kind + packing for kind in TEXT_SUFFIXES + ROW_SUFFIXES for packing in PACKERS} == set(
        DATA_SUFFIXES
    )


@pytest.mark.parametrize("suffix", DATA_SUFFIXES)
def test_each_format_gives_its_documents(suffix: str, tmp_path: Path) -> None:
    if any(kind in suffix for kind in ROW_SUFFIXES):
        write(tmp_path / "set" / f"a{suffix}", TEXTS[:17])
        write(tmp_path / "set" / f"b{suffix}", TEXTS[17:])
    else:
        for number, text in enumerate(TEXTS):
            write(tmp_path / "set" / f"{number:02d}{suffix}", [text])
    (tmp_path / "set" / "image.png").write_bytes(b"\xff")
    assert documents(opened(tmp_path / "set", validation_uri=beside(tmp_path))) == TEXTS


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.jsonl.gz"])
def test_one_file_is_a_data_set(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, TEXTS)
    assert documents(opened((tmp_path / name).as_uri(), validation_uri=beside(tmp_path))) == TEXTS


def test_a_text_field_of_another_name(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", TEXTS[:15], field="content")
    write(tmp_path / "b.parquet", TEXTS[15:], field="content")
    validation = str(tmp_path / "a.jsonl")
    assert documents(opened(tmp_path, text_field="content", validation_uri=validation)) == TEXTS


def test_files_large_and_small_through_an_object_store(tmp_path: Path, s3_bucket: str) -> None:
    long = ["x" * 200_000 + str(number) for number in range(8)]  # above what is fetched whole
    write(tmp_path / "set" / "a.jsonl", long)
    write(tmp_path / "set" / "b.parquet", long)
    write(tmp_path / "set" / "c.txt.gz", ["a small one"])
    prefix = upload_text(tmp_path / "set", s3_bucket, "set")
    validation = beside(tmp_path)
    here = opened(tmp_path / "set", validation_uri=validation)
    there = opened(f"{s3_bucket}/{prefix}", validation_uri=validation)
    assert documents(there) == documents(here) == [*long, *long, "a small one"]
    assert there.digest() == here.digest()
    assert batches(there, seq_len=64).next_batch().tolist() == batches(here, seq_len=64).next_batch().tolist()


def test_a_long_text_of_its_own_is_cut_at_line_ends(tmp_path: Path) -> None:
    lines = [f"line {number}\n" for number in range(2000)]
    write(tmp_path / "long.txt", ["".join(lines)])
    data = opened(tmp_path)
    share = data.share(0, 1)
    assert share.by_rows
    pieces = documents(data)
    assert 950 < max(map(len, pieces)) <= 1024
    assert all(piece.startswith("line ") and piece.endswith("\n") for piece in pieces)
    windows = held_out_windows(data, 1, 100_000)
    kept = text_of(windows.flatten().tolist()).split("|")[:-1]
    assert 2 <= len(kept) <= 3  # of 23 pieces
    assert sorted("".join(pieces + kept).splitlines()) == sorted("".join(lines).splitlines())


def test_a_long_text_among_many_stays_one_document(tmp_path: Path) -> None:
    long = "x" + "é" * 1_400_000  # 2.8 MB without a line end: every cut at a MiB would halve an é
    for number in range(70):
        write(tmp_path / "set" / f"{number:02d}.txt", [long if number == 7 else f"short {number}"])
    found = documents(opened(tmp_path / "set", validation_uri=beside(tmp_path)))
    assert len(found) == 70
    assert found[7] == long


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.parquet"])
def test_messages_go_through_the_chat_template(name: str, tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}] for n in range(5)
    ]
    write(tmp_path / "set" / name, chats, field="messages")
    write(tmp_path / "other" / name, chats, field="messages")
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT
    data = opened(
        tmp_path / "set",
        text_field="messages",
        tokenizer=tokenizer,
        validation_uri=str(tmp_path / "other"),
    )
    assert documents(data) == [f"<user>{n}?</user><assistant>{n}!</assistant>" for n in range(5)]
    tokenizer.chat_template = None
    with pytest.raises(BadDataSet, match="the tokenizer has no chat template"):
        documents(data)


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 100])
def test_lines_do_not_depend_on_the_blocks_they_are_read_in(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "READ_BYTES", block_bytes)
    for text in (b"", b"\n", b"a", b"a\n", b"\n\na", b"ab\ncde\n\nf", b"abcdefgh\n"):
        expected = text.removesuffix(b"\n").split(b"\n") if text else []
        assert list(formats.lines(io.BytesIO(text))) == expected


def test_a_tokenizer_of_words_is_used_as_it_is(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[end]": 0, "[unk]": 1, "one": 2, "two": 3, "three": 4}
    backend = Tokenizer(models.WordLevel(words, unk_token="[unk]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[end]")
    write(tmp_path / "set" / "a.jsonl", ["one two three", "three", "two four"])
    data = open_data_set(str(tmp_path / "set"), tokenizer, validation_uri=beside(tmp_path))
    share = data.share(0, 1)
    ids = [d.ids.tolist() for d in data.reader.documents(data.source, share.files, share.has, joined=True)]
    assert ids == [[2, 3, 4, 0], [4, 0], [3, 1, 0]]
    tokenizer.eos_token = None
    with pytest.raises(BadDataSet, match="no end-of-sequence token"):
        open_data_set(str(tmp_path / "set"), tokenizer)


def test_bytes_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    text = "héllo wörld"
    write(tmp_path / "set" / "a.jsonl", [text])
    data = opened(tmp_path / "set", validation_uri=beside(tmp_path))
    share = data.share(0, 1)
    (document,) = data.reader.documents(data.source, share.files, share.has, joined=True)
    assert document.ids.tolist() == build_tokenizer()(text)["input_ids"]  # which closes it, too


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    line = json.dumps({"text": "first"}).encode()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n" + line)
    (tmp_path / "set" / "b.txt").write_bytes(b"\xef\xbb\xbfsecond")
    assert documents(opened(tmp_path / "set", validation_uri=beside(tmp_path))) == [
        "first",
        "first",
        "second",
    ]
