"""Text in, batches out: disjoint by rank, complete over an epoch, the same at every resume."""

import json
import math
from pathlib import Path

import pytest
import torch

from runs.upload_text import upload_text
from trainer.data import Batches, Corpus, bigram_loss, held_out_windows, load_corpus
from trainer.failures import BadDataSet
from trainer.model import BYTE_OFFSET, build_tokenizer


def corpus(train: bytes, held_out: bytes = b"") -> Corpus:
    return Corpus(
        "here",
        torch.frombuffer(bytearray(train or b"x"), dtype=torch.uint8),
        torch.frombuffer(bytearray(held_out or b"x"), dtype=torch.uint8),
    )


def batches(data: Corpus, rank: int = 0, world_size: int = 1, seed: int = 0) -> Batches:
    return Batches(data, rank=rank, world_size=world_size, seq_len=8, batch_size=2, seed=seed)


NUMBERED = corpus(bytes(range(240)))  # 30 windows of 8


def first_bytes(found: Batches, count: int) -> list[int]:
    return [int(row[0]) - BYTE_OFFSET for _ in range(count) for row in found.next_batch()]


def test_an_epoch_over_all_ranks_sees_every_window_once() -> None:
    seen = [first_bytes(batches(NUMBERED, rank, 3), 5) for rank in range(3)]
    assert sorted(window for part in seen for window in part) == list(range(0, 240, 8))
    assert all(len(set(part)) == 10 for part in seen)


def test_batches_are_a_function_of_seed_rank_and_number() -> None:
    found = batches(NUMBERED)
    whole = [found.next_batch() for _ in range(40)]
    fresh = batches(NUMBERED)
    for index in (39, 3, 17, 0):  # any order, over epochs
        fresh.seek(index)
        assert torch.equal(fresh.next_batch(), whole[index])
    assert first_bytes(batches(NUMBERED, seed=1), 10) != first_bytes(batches(NUMBERED), 10)


def test_batches_go_on_where_their_state_was_taken() -> None:
    found, other = batches(NUMBERED), batches(NUMBERED)
    for _ in range(17):
        found.next_batch()
    other.load_state_dict(json.loads(json.dumps(found.state_dict())))
    assert all(torch.equal(found.next_batch(), other.next_batch()) for _ in range(20))


def test_epochs_are_shuffled_apart() -> None:
    found = batches(NUMBERED)
    epochs = [[int(row[0]) for _ in range(15) for row in found.next_batch()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_tokens_are_those_of_the_tokenizer() -> None:
    text = "héllo wörld, 16b"
    data = corpus(text.encode()[:16] * 2)
    ids = build_tokenizer()(text.encode()[:8].decode(), add_special_tokens=False)["input_ids"]
    rows = {tuple(row.tolist()) for row in batches(data).next_batch()}
    assert tuple(ids) in rows


def test_the_bigram_loss_by_hand() -> None:
    """Trained on "ababab" (a->b 3, b->a 2): after a, b has (3+1)/(3+256); after b, a has (2+1)/(2+256)."""
    data = corpus(b"ababab")
    window = torch.tensor([[97, 98, 97]], dtype=torch.uint8)
    expected = -(math.log(4 / 259) + math.log(3 / 258)) / 2
    assert bigram_loss(data, window) == pytest.approx(expected, rel=1e-12)


def test_held_out_windows_are_spread_and_bounded() -> None:
    windows = held_out_windows(corpus(b"", bytes(i % 251 for i in range(8 * 1000))), 8)
    assert windows.shape == (64, 8)
    whole = held_out_windows(corpus(b"", bytes(range(20))), 8)
    assert whole.tolist() == [list(range(8)), list(range(8, 16))]


def write_folder(folder: Path, count: int) -> None:
    for index in range(count):
        path = folder / f"part{index % 3}" / f"file{index}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<{index}>" * 50)
    (folder / "image.png").write_bytes(b"\xff")


def test_a_tenth_of_the_files_is_held_out_whole_wherever_they_lie(tmp_path: Path, s3_bucket: str) -> None:
    write_folder(tmp_path / "text", 100)
    here = load_corpus(str(tmp_path / "text"))
    prefix = upload_text(tmp_path / "text", s3_bucket, "text")
    there = load_corpus(f"{s3_bucket}/{prefix}")
    assert torch.equal(here.train, there.train)
    assert torch.equal(here.held_out, there.held_out)
    train, held_out = (bytes(part.tolist()).decode() for part in (here.train, here.held_out))
    kept = {index for index in range(100) if f"<{index}>" in held_out}
    assert 3 <= len(kept) <= 20
    assert not any(f"<{index}>" in train for index in kept)


def test_the_built_in_text_is_enough_for_a_smoke_run() -> None:
    found = load_corpus("builtin")
    assert len(found.train) > 50_000
    assert len(found.held_out) > 1000


def test_of_few_files_one_is_held_out(tmp_path: Path) -> None:
    write_folder(tmp_path, 2)
    found = load_corpus(tmp_path.as_uri())
    assert len(found.train) == len(found.held_out) == 150


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadDataSet, match=r"dataset_uri .*/nowhere: "):
        load_corpus(str(tmp_path / "nowhere"))


def test_a_missing_bucket_is_named(s3_bucket: str) -> None:
    with pytest.raises(BadDataSet, match=r"dataset_uri s3://no-such-bucket/text: "):
        load_corpus("s3://no-such-bucket/text")


def test_a_folder_without_text_says_what_would_count(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\xff")
    with pytest.raises(BadDataSet, match=r"no text files \(.txt, .md, .rst, .py\)"):
        load_corpus(str(tmp_path))


def test_a_single_file_leaves_nothing_to_hold_out(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("x" * 1000)
    with pytest.raises(BadDataSet, match="needs at least two text files"):
        load_corpus(str(tmp_path))


def test_too_little_text_says_how_little() -> None:
    with pytest.raises(
        BadDataSet,
        match="here: 240 bytes give each of 20 ranks 1 sequences of 8 tokens, fewer than one batch",
    ):
        batches(NUMBERED, 0, 20)
    with pytest.raises(BadDataSet, match="held-out files hold less than 8 bytes"):
        held_out_windows(NUMBERED, 8)
