"""Batches: disjoint by rank, complete over an epoch, shuffled anew, and the same after every resume."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.trainer.data.sets import batches, numbered, opened, text_of, write
from trainer.data import Batches, held_out_windows
from trainer.data.stream import Place, TokenStream
from trainer.failures import BadDataSet

TEXTS = numbered(60)


def many_texts(folder: Path) -> None:
    for number, text in enumerate(TEXTS):
        write(folder / f"part{number % 3}" / f"{number}.txt", [text])


def long_text(folder: Path) -> None:
    write(folder / "long.txt", ["\n".join(f"line {number} of one long text" for number in range(1500))])


def lines_in_one_file(folder: Path) -> None:
    write(folder / "rows.jsonl.gz", TEXTS)


def lines_in_many_files(folder: Path) -> None:
    for number in range(12):
        write(folder / f"{number}.jsonl", TEXTS[number * 5 : number * 5 + 5])


def parquet(folder: Path) -> None:
    write(folder / "a.parquet", TEXTS[:40])
    write(folder / "b.parquet.zst", TEXTS[40:])


SETS: list[Callable[[Path], None]] = [
    many_texts,
    long_text,
    lines_in_one_file,
    lines_in_many_files,
    parquet,
]
SHARES = [(rank, world_size) for world_size in (1, 2, 3) for rank in range(world_size)]


def epoch_of(found: Batches) -> int:
    return int(found.state_dict()["epoch"])


@pytest.mark.parametrize("make", SETS)
@pytest.mark.parametrize(("rank", "world_size"), SHARES)
def test_a_resume_at_every_step_gives_the_batches_that_were_to_come(
    make: Callable[[Path], None], rank: int, world_size: int, tmp_path: Path
) -> None:
    make(tmp_path)
    data = opened(tmp_path)
    seq_len = 256 if make is long_text else 8
    whole = batches(data, rank, world_size, seq_len=seq_len)
    states, taken = [], []
    while epoch_of(whole) < 2:
        states.append(json.dumps(whole.state_dict()))
        taken.append(whole.next_batch())
    steps = len(taken) - 6
    assert steps > 6
    resumed = batches(data, rank, world_size, seq_len=seq_len)
    for step in range(steps):
        resumed.load_state_dict(json.loads(states[step]))
        assert json.dumps(resumed.state_dict()) == states[step]
        for ahead in range(6):  # more than a block, so over every border
            assert torch.equal(resumed.next_batch(), taken[step + ahead]), (step, ahead)


@pytest.mark.parametrize("make", SETS)
def test_seeking_is_having_taken_so_many(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    data = opened(tmp_path)
    whole = batches(data, 1, 2)
    taken = [whole.next_batch() for _ in range(50)]
    moved = batches(data, 1, 2)
    for index in (49, 0, 1, 2, 3, 5, 17, 33, 34, 35, 35, 20):  # on and back, within a block and over many
        moved.seek(index)
        state = json.dumps(moved.state_dict())
        assert torch.equal(moved.next_batch(), taken[index])
        again = batches(data, 1, 2)
        again.load_state_dict(json.loads(state))
        assert torch.equal(again.next_batch(), taken[index])


def epoch_texts(folder: Path, rank: int, world_size: int, epochs: int = 1) -> list[str]:
    """The documents of a rank's first epochs, in the order of its stream."""
    data = opened(folder)
    stream = TokenStream(data, data.share(rank, world_size), seed=0, seq_len=1, least_tokens=1, start=Place())
    ids: list[int] = []
    while stream.place.epoch < epochs:
        ids.extend(stream.take(1)[0].tolist())
    return text_of(ids[:-1]).split("|")[:-1]  # the last token taken is the next epoch's first


@pytest.mark.parametrize("make", [many_texts, lines_in_one_file, lines_in_many_files, parquet])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_over_all_ranks_an_epoch_has_every_document_once_and_none_held_out(
    make: Callable[[Path], None], world_size: int, tmp_path: Path
) -> None:
    make(tmp_path)
    shares = [epoch_texts(tmp_path, rank, world_size) for rank in range(world_size)]
    seen = Counter(text for share in shares for text in share)
    assert all(shares)
    assert set(seen.values()) == {1}
    kept = set(TEXTS) - seen.keys()
    assert 1 <= len(kept) <= 15
    assert seen.keys() == set(TEXTS) - kept
    windows = held_out_windows(opened(tmp_path), 1, 10_000)
    assert set(text_of(windows.flatten().tolist()).split("|")[:-1]) == kept


def test_batches_hold_every_token_of_the_stream_once(tmp_path: Path) -> None:
    lines_in_one_file(tmp_path)
    data = opened(tmp_path)
    plain = TokenStream(data, data.share(0, 1), seed=0, seq_len=8, least_tokens=1, start=Place())
    expected = torch.cat([torch.from_numpy(plain.take(1)) for _ in range(40)])
    found = batches(data, batch_size=1)
    shuffled = torch.cat([found.next_batch() for _ in range(40)])
    orders = set()
    for block in range(0, 40, 5):
        one, other = shuffled[block : block + 5].tolist(), expected[block : block + 5].tolist()
        assert sorted(one) == sorted(other)
        orders.add(tuple(other.index(sequence) for sequence in one))
    assert len(orders) > 4  # of 8 blocks


def test_an_epoch_border_loses_nothing(tmp_path: Path) -> None:
    """What an epoch leaves over, less than a sequence, begins the first sequence of the next."""
    lines_in_one_file(tmp_path)
    data = opened(tmp_path)

    def tokens(seq_len: int, count: int) -> list[int]:
        stream = TokenStream(data, data.share(0, 1), seed=3, seq_len=seq_len, least_tokens=1, start=Place())
        return [one for _ in range(count) for one in stream.take(1).flatten().tolist()]

    assert tokens(7, 1000) == tokens(1, 7000)


def test_epochs_and_seeds_have_orders_of_their_own(tmp_path: Path) -> None:
    many_texts(tmp_path)
    two = epoch_texts(tmp_path, 0, 1, epochs=2)
    first, second = two[: len(two) // 2], two[len(two) // 2 :]
    assert first != second
    assert sorted(first) == sorted(second)
    data = opened(tmp_path)
    assert not torch.equal(batches(data, seed=0).next_batch(), batches(data, seed=1).next_batch())
    assert torch.equal(batches(data, seed=1).next_batch(), batches(data, seed=1).next_batch())


def test_each_rank_opens_only_its_own_files_where_they_balance(tmp_path: Path) -> None:
    many_texts(tmp_path)
    data = opened(tmp_path)
    shares = [data.share(rank, 3) for rank in range(3)]
    assert [share.of for share in shares] == [1, 1, 1]
    names = [file.name for share in shares for file in share.files]
    assert len(names) == len(set(names)) == len(data.source.files) - len(data.held_out.files or ())
    sizes = [sum(file.bytes for file in share.files) for share in shares]
    assert max(sizes) - min(sizes) <= max(file.bytes for file in data.source.files)


def test_fewer_files_than_ranks_are_shared_by_rows(tmp_path: Path) -> None:
    lines_in_one_file(tmp_path)
    data = opened(tmp_path)
    assert [data.share(rank, 3).of for rank in range(3)] == [3, 3, 3]


def test_a_state_of_other_data_or_another_rank_is_refused(tmp_path: Path) -> None:
    many_texts(tmp_path)
    state = batches(opened(tmp_path)).state_dict()
    others = [batches(opened(tmp_path), 1, 2), batches(opened(tmp_path), seed=1)]
    write(tmp_path / "more.txt", ["one more"])
    for other in [*others, batches(opened(tmp_path))]:
        with pytest.raises(BadDataSet, match="are not those of the checkpoint"):
            other.load_state_dict(state)


def test_a_state_is_small(tmp_path: Path) -> None:
    many_texts(tmp_path)
    found = batches(opened(tmp_path))
    found.next_batch()
    assert len(json.dumps(found.state_dict())) < 200


def test_too_little_text_says_how_little(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", ["a few bytes" for _ in range(30)])
    with pytest.raises(
        BadDataSet, match=r"share of 1 files .* tokens to train on, fewer than one batch of 640"
    ):
        batches(opened(tmp_path), seq_len=320).next_batch()
    with pytest.raises(BadDataSet, match=r"every 40\. row\) has 0 tokens to train on"):
        for rank in range(40):
            batches(opened(tmp_path), rank, 40, seq_len=1, batch_size=1).next_batch()
