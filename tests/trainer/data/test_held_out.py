"""What is held out: the same everywhere, never trained on, enough to evaluate on or a clear answer."""

import math
from pathlib import Path

import pytest
import torch

from tests.trainer.data.sets import numbered, opened, text_of, write
from trainer.data import bigram_loss, held_out_windows
from trainer.data.shares import hash_of
from trainer.failures import BadDataSet
from trainer.model import BYTE_OFFSET, VOCABULARY


def test_of_many_files_a_share_is_held_out_whole(tmp_path: Path) -> None:
    for number in range(100):
        write(tmp_path / f"part{number % 3}" / f"{number}.jsonl", [f"<{number}> {row}" for row in range(9)])
    data = opened(tmp_path)
    assert data.held_out.files == {
        file.name for file in data.source.files if hash_of(file.name) < 0.1 * 2**64
    }
    assert 3 <= len(data.held_out.files) <= 20
    more = opened(tmp_path, held_out_share=0.4)
    assert data.held_out.files < (more.held_out.files or set())
    assert 30 <= len(more.held_out.files or ()) <= 50


def test_of_few_files_rows_are_held_out_one_of_each_ten(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbered(60))
    write(tmp_path / "b.parquet", numbered(35))
    data = opened(tmp_path)
    assert data.held_out.files is None
    for name in ("a.jsonl", "b.parquet"):
        kept = [row for row in range(60) if data.held_out.has(name, row)]
        assert [row // 10 for row in kept] == list(range(6))
        assert len({row % 10 for row in kept}) > 1


def test_of_few_texts_one_is_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", ["x" * 150])
    write(tmp_path / "b.txt", ["y" * 150])
    data = opened(tmp_path)
    assert len(data.held_out.files or ()) == 1


def test_what_is_held_out_does_not_depend_on_the_ranks(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", numbered(60))
    data = opened(tmp_path)
    assert (
        len({data.share(rank, world_size).held_out for world_size in (1, 4) for rank in range(world_size)})
        == 1
    )


def test_with_a_validation_set_everything_else_is_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.jsonl", ["train"] * 40)
    write(tmp_path / "test" / "a.jsonl", ["test"] * 3)
    data = opened(tmp_path / "train", validation_uri=str(tmp_path / "test"))
    share = data.share(0, 1)
    documents = data.reader.documents(data.source, share.files, share.has, joined=True)
    assert sum(1 for _ in documents) == 40
    assert text_of(held_out_windows(data, 15).flatten().tolist()) == "test|test|test|"


def test_held_out_windows_are_spread_and_bounded(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.jsonl", ["train"])
    write(tmp_path / "test" / "a.jsonl", [f"{number:07d}" for number in range(1000)])
    data = opened(tmp_path / "train", validation_uri=str(tmp_path / "test"))
    windows = held_out_windows(data, 8, 4)
    assert [text_of(row) for row in windows.tolist()] == ["0000000|", "0000333|", "0000666|", "0000999|"]
    assert windows.dtype == torch.int64
    assert held_out_windows(data, 8).shape == (64, 8)


def test_too_little_held_out_text_says_how_little(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ["abc"] * 20)
    with pytest.raises(
        BadDataSet, match="its held-out part has 8 tokens, less than one sequence of 9. Raise"
    ):
        held_out_windows(opened(tmp_path), 9)


def test_the_bigram_loss_by_hand(tmp_path: Path) -> None:
    """Trained on "ababab" and its end: after a, b is 3 of 3; after b, a is 2 and the end 1 of 3."""
    write(tmp_path / "train" / "a.jsonl", ["ababab"])
    data = opened(tmp_path / "train", validation_uri=str(tmp_path / "train"))
    window = torch.tensor([[97, 98, 97]]) + BYTE_OFFSET
    expected = -(math.log(4 / (3 + VOCABULARY)) + math.log(3 / (3 + VOCABULARY))) / 2
    assert bigram_loss(data, window) == pytest.approx(expected, rel=1e-12)


def test_pairs_over_the_border_of_what_is_counted_at_once_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train" / "a.jsonl", numbered(40))
    data = opened(tmp_path / "train", validation_uri=str(tmp_path / "train"))
    windows = held_out_windows(data, 64)
    at_once = bigram_loss(data, windows)
    monkeypatch.setattr("trainer.data.held_out.POOL_TOKENS", 50)
    assert bigram_loss(data, windows) == at_once


def test_the_built_in_text_is_enough_for_a_smoke_run() -> None:
    data = opened("builtin")
    train = [file for file in data.source.files if file.name not in (data.held_out.files or ())]
    assert sum(file.bytes for file in train) > 50_000
    assert held_out_windows(data, 64).shape == (64, 64)
    assert [data.share(rank, 2).of for rank in range(2)] == [1, 1]
