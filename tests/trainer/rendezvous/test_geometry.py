"""Where a flat tensor is cut: whole blocks, everything once, at most a slice a rank, at the real sizes."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer.rendezvous.base import payload_size
from trainer.rendezvous.geometry import CHUNK_ELEMENTS, Geometry, is_sharded
from trainer.rendezvous.wire import BLOCK, FORMATS


@pytest.mark.parametrize(
    ("numel", "ranks", "chunk_elements", "chunks_per_slice", "chunks", "slices"),
    [
        (1, 1, 256, 1, 1, 1),
        (256, 1, 256, 1, 1, 1),
        (257, 1, 512, 1, 1, 1),  # a slice is rounded up to whole blocks
        (256, 40, 256, 1, 1, 1),  # fewer slices than ranks: the others would be empty
        (1000, 3, 512, 1, 2, 2),  # 334 values a rank, in whole blocks
        (2**22, 1, 2**22, 1, 1, 1),  # just one chunk
        (2**22 + 1, 1, 8193 * 256, 2, 2, 1),  # and two of about half
        (2**24, 4, 2**22, 1, 4, 4),
        (2**24 + 1, 4, 8193 * 256, 2, 8, 4),
        (10**9, 8, 4166912, 30, 240, 8),  # 125e6 values a rank: 30 chunks, each of 16277 blocks
    ],
)
def test_the_cuts_by_hand(
    numel: int, ranks: int, chunk_elements: int, chunks_per_slice: int, chunks: int, slices: int
) -> None:
    cut = Geometry.of(numel, ranks)
    assert (cut.chunk_elements, cut.chunks_per_slice) == (chunk_elements, chunks_per_slice)
    assert (cut.chunks, cut.slices) == (chunks, slices)


@settings(max_examples=200, deadline=None)
@given(numel=st.integers(1, 2**28), ranks=st.integers(1, 40))
@example(numel=2**28, ranks=1)
@example(numel=BLOCK * 40 + 1, ranks=40)
def test_every_value_is_in_one_chunk_of_one_slice(numel: int, ranks: int) -> None:
    cut = Geometry.of(numel, ranks)
    end = 0
    for number in range(cut.slices):
        chunks = cut.chunks_of(number)
        assert 1 <= len(chunks) <= cut.chunks_per_slice
        for index in chunks:
            span = cut.chunk(index)
            assert span.start == end
            assert span.start % BLOCK == 0
            assert cut.count(index) == span.stop - span.start > 0
            end = span.stop
    assert end == numel


def test_the_last_slice_has_only_the_chunks_that_are_left() -> None:
    cut = Geometry(numel=4 * BLOCK + 1, chunk_elements=BLOCK, chunks_per_slice=2)
    assert (cut.chunks, cut.slices) == (5, 3)
    assert [list(cut.chunks_of(number)) for number in range(3)] == [[0, 1], [2, 3], [4]]
    assert (cut.chunk(4), cut.count(4)) == (slice(4 * BLOCK, 4 * BLOCK + 1), 1)


@settings(max_examples=200, deadline=None)
@given(numel=st.integers(1, 2**30), ranks=st.integers(1, 40))
def test_slices_are_few_and_chunks_are_small(numel: int, ranks: int) -> None:
    cut = Geometry.of(numel, ranks)
    assert cut.slices <= ranks
    assert BLOCK <= cut.chunk_elements <= CHUNK_ELEMENTS
    assert cut.chunk_elements % BLOCK == 0
    # A rank's share is even but for less than a block in each of its chunks.
    assert 0 <= cut.chunk_elements * cut.chunks_per_slice - -(-numel // ranks) < BLOCK * cut.chunks_per_slice


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("numel", [1, 255, 1000, 2**22 + 1])
def test_the_chunks_of_a_payload_lie_where_its_manifest_says(name: str, numel: int) -> None:
    cut, wire = Geometry.of(numel, 3), FORMATS[name]
    size_bytes, chunk_bytes = payload_size(cut, wire, range(cut.chunks))
    # Readers fetch chunk i at i times the length of a whole one; only the last may be shorter.
    assert (cut.chunks - 1) * chunk_bytes + wire.size_of(cut.count(cut.chunks - 1)) == size_bytes


@pytest.mark.parametrize(
    ("numel", "ranks", "expected"),
    [(2**25, 4, True), (2**23, 4, False), (2**22, 8, True), (2**23, 3, False), (2**30, 2, False)],
)
def test_what_spares_each_rank_2_24_values_is_averaged_in_slices(
    numel: int, ranks: int, expected: bool
) -> None:
    assert is_sharded(numel, ranks) is expected
