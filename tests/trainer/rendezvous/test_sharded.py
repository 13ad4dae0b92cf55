"""The mean in slices: what is moved, who stands in for whom, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.gang import base, exchange, standing, together
from tests.support.plain_mean import plain_mean
from tests.trainer.rendezvous.test_allreduce import run_round
from trainer.rendezvous import geometry, sharded
from trainer.rendezvous.documents import MeanSlice, Member, Roster
from trainer.rendezvous.errors import ForeignObject
from trainer.rendezvous.geometry import Geometry, is_sharded
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.payload import Payload
from trainer.rendezvous.sharded import TAKE_OVER_S, ShardedMean
from trainer.rendezvous.waiting import Clock
from trainer.rendezvous.wire import BLOCK, Floats

NUMEL = 5000


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "SHARD_FROM_ELEMENTS", 0)
    monkeypatch.setattr(geometry, "CHUNK_ELEMENTS", 2 * BLOCK)


def tensors(size: int) -> list[Floats]:
    chance = np.random.default_rng(0)
    return [chance.standard_normal(NUMEL).astype(np.float32) for _ in range(size)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("numel", [1, 255, 256, 257, 100_003])
def test_slices_are_whole_blocks_and_cover_the_tensor_once(ranks: int, numel: int) -> None:
    cut = Geometry.of(numel, ranks)
    chunks = [index for number in range(cut.slices) for index in cut.chunks_of(number)]
    assert chunks == list(range(cut.chunks))
    values = np.concatenate([np.arange(numel)[cut.chunk(index)] for index in chunks])
    assert np.array_equal(values, np.arange(numel))
    assert cut.chunk_elements % BLOCK == 0
    assert cut.slices <= ranks


def test_two_ranks_and_small_tensors_are_not_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what a rank need not fetch: of four, a tensor and a half of three."""
    monkeypatch.setattr(geometry, "SHARD_FROM_ELEMENTS", 3 * 2**19)
    assert is_sharded(2**20, 4)
    assert not is_sharded(2**20 - 1, 4)
    assert is_sharded(2**19, 8)  # 5.25 tensors of seven
    assert not is_sharded(2**20, 3)  # two thirds of a tensor of two
    assert not is_sharded(2**30, 2)


def test_a_rank_moves_as_much_as_the_rule_says(store: ObjectStore) -> None:
    """Down 2 (N - 1) / N of the tensor; up the tensor and one slice of the mean."""
    size = 4
    cut = Geometry.of(NUMEL, size)
    slices = [4 * sum(cut.count(index) for index in cut.chunks_of(number)) for number in range(size)]
    for rank, mean in enumerate(run_round(store, tensors(size))):
        others = sum(slices) - slices[rank]
        assert mean.event.received_bytes == (size - 1) * slices[rank] + others
        assert mean.event.sent_bytes == 4 * NUMEL + slices[rank]
    assert store.names("diloco-rdv/run/log/round_000000")[:4] == [f"mean_{n:04d}.json" for n in range(size)]


def test_the_slice_of_a_rank_that_died_is_taken_over_by_the_next(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 contributes and dies; its slice has the same bits, made by rank 2."""
    monkeypatch.setattr(sharded, "TAKE_OVER_S", 0.2)
    given = tensors(3)
    dead = exchange(store, 1, 3)
    dead._contributor.contribute(0, given[1].copy(), base(NUMEL), Geometry.of(NUMEL, 3))
    alive = together(2, lambda n: exchange(store, 2 * n, 3).run(0, given[2 * n].copy(), base(NUMEL)))
    for mean in alive:
        assert np.array_equal(mean.values, plain_mean(given))
    roster = dead.log.roster(0)
    assert roster is not None
    assert roster.slice_owners == (0, 1, 2)
    authors = [announced.rank for announced in dead.log.mean_slices(roster, range(3)).values()]
    assert authors == [0, 2, 2]


@pytest.mark.parametrize(
    ("field", "wrong"), [("roster_sha256", "another roster"), ("dtype", "bf16"), ("run_id", "another")]
)
def test_a_slice_of_another_roster_or_format_is_foreign(store: ObjectStore, field: str, wrong: str) -> None:
    given = tensors(3)
    for rank in (0, 1):
        exchange(store, rank, 3)._contributor.contribute(
            0, given[rank].copy(), base(NUMEL), Geometry.of(NUMEL, 3)
        )
    log = standing(store, 9).log
    payload = Payload.put(store, "elsewhere", memoryview(bytes(4)), 4)
    forged = replace(MeanSlice("run", 0, 0, 0, 0, "x", "fp32", payload), **{field: wrong})
    log.announce_slice(forged)
    with pytest.raises(
        ForeignObject, match=rf"mean_0000.json: its {field if field == 'run_id' else 'roster_sha256'} is"
    ):
        exchange(store, 2, 3).run(0, given[2].copy(), base(NUMEL))


def test_what_one_round_loses_the_next_ones_send(store: ObjectStore) -> None:
    """Error feedback: over rounds the means of a quantised constant add up to the constant's own sum."""
    constant = np.linspace(-1, 1, BLOCK, dtype=np.float32)
    reduce, total, rounds = exchange(store, 0, 1, wire_dtype="int4"), np.zeros(BLOCK, np.float32), 12
    for index in range(rounds):
        total += reduce.run(index, constant.copy(), base(BLOCK)).values
    step = 1 / 7  # of the codes: what a single round may be off by is half of it, and rounds don't add up
    assert np.abs(total - rounds * constant).max() < step
    once = exchange(store, 0, 1, wire_dtype="int4").run(rounds, constant.copy(), base(BLOCK)).values
    assert np.abs(rounds * once - rounds * constant).max() > 3 * step  # without feedback the errors add up


@pytest.mark.parametrize(("rank", "turn"), [(2, 1), (3, 2), (0, 3)])
def test_the_ranks_after_a_late_owner_have_their_turns_in_order(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, rank: int, turn: int
) -> None:
    computed: list[int] = []
    monkeypatch.setattr(ShardedMean, "_compute", lambda self, fetcher, index: computed.append(index))
    members = tuple(Member(n, 0, "") for n in range(4))
    roster = Roster("run", 0, "base", members, "fp32", (0, 1, 2, 3))
    late = ShardedMean(standing(store, rank), Clock(), roster, None, None, _missing={1})  # type: ignore[arg-type]
    late._take_over(None, turn * TAKE_OVER_S - 0.1)  # type: ignore[arg-type]
    assert computed == []
    late._take_over(None, turn * TAKE_OVER_S)  # type: ignore[arg-type]
    assert computed == [1]
