"""How values travel: the exact bytes, by hand; what is lost, and where; what every cut leaves alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gang import base, exchange
from trainer.rendezvous.errors import NonFinite
from trainer.rendezvous.object_store import open_store
from trainer.rendezvous.wire import BLOCK, FORMATS, Floats

TINIEST = float(np.finfo(np.float32).smallest_subnormal)
CODES = {"int8": 127, "int4": 7}


def values(*numbers: float) -> Floats:
    return np.array(numbers, np.float32)


def from_bits(*bits: int) -> Floats:
    return np.array(bits, np.uint32).view(np.float32)


def encoded(name: str, numbers: Floats) -> bytes:
    return bytes(FORMATS[name].encode(numbers.copy()))


def there_and_back(name: str, numbers: Floats) -> Floats:
    return FORMATS[name].decode(memoryview(encoded(name, numbers)), len(numbers))


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        # Little-endian IEEE 754, negative zero and the smallest denormal included.
        ("fp32", values(1, -2, 0.5), "0000803f 000000c0 0000003f"),
        ("fp32", values(-0.0, TINIEST), "00000080 01000000"),
        # The upper half of the bits: exact, a tie to even down, a tie to even up, just above a tie.
        ("bf16", from_bits(0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001), "803f 803f 823f 813f"),
        ("bf16", values(-2, -0.0), "00c0 0080"),
        # The scale is 127 / 127; halves go to even codes.
        ("int8", values(127, 1, -127, 0.5, 1.5, 2.5, -0.5), "0000803f 7f 01 81 00 02 02 00"),
        # Two blocks: both scales first, then all codes.
        ("int8", values(*[127] * BLOCK, 254, -2, 0), "0000803f 00000040" + "7f" * BLOCK + "7f ff 00"),
        # Codes 7 -7 1 0 4, plus 8, the first of two in the low half; an odd one is followed by a zero's 8.
        ("int4", values(7, -7, 1, 0, 3.5), "0000803f 1f 89 8c"),
        ("int4", values(*[7] * BLOCK, 14, -2), "0000803f 00000040" + "ff" * (BLOCK // 2) + "7f"),
        # Nothing but zeros, and nothing big enough for a scale.
        ("int8", values(0, -0.0), "00000000 00 00"),
        ("int8", values(TINIEST), "00000000 00"),
        ("int4", values(0, TINIEST), "00000000 88"),
    ],
)
def test_the_bytes_are_these(name: str, numbers: Floats, expected: str) -> None:
    assert encoded(name, numbers) == bytes.fromhex(expected)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("count", [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 1000])
def test_size_of_is_the_length_of_what_is_encoded(name: str, count: int) -> None:
    assert FORMATS[name].size_of(count) == len(encoded(name, np.ones(count, np.float32)))


def test_the_sizes_by_hand() -> None:
    sizes = {name: [made.size_of(n) for n in (1, 256, 257)] for name, made in FORMATS.items()}
    assert sizes == {
        "fp32": [4, 1024, 1028],
        "bf16": [2, 512, 514],
        "int8": [4 + 1, 4 + 256, 8 + 257],
        "int4": [4 + 1, 4 + 128, 8 + 129],
    }


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=600),
    st.sampled_from(sorted(FORMATS)),
)
def test_a_block_travels_alone_as_it_would_within_the_tensor(numbers: list[float], name: str) -> None:
    whole = values(*numbers)
    parts = [there_and_back(name, whole[start : start + BLOCK]) for start in range(0, len(whole), BLOCK)]
    assert np.concatenate(parts).tobytes() == there_and_back(name, whole).tobytes()


def test_fp32_is_exact_and_alone_in_it() -> None:
    every = np.random.default_rng(0).integers(0, 2**32, 10_000, np.uint32).view(np.float32)
    assert there_and_back("fp32", every).tobytes() == every.tobytes()
    assert [name for name, made in FORMATS.items() if made.is_exact] == ["fp32"]


def test_bf16_rounds_as_torch_does() -> None:
    upper = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    every = (upper[:, None] | lower).reshape(-1).view(np.float32)
    every = every[np.isfinite(every)]
    expected = torch.from_numpy(every).to(torch.bfloat16).to(torch.float32).numpy()
    assert there_and_back("bf16", every).tobytes() == expected.tobytes()


def test_bf16_ends_below_float32() -> None:
    # Half of bfloat16's last step above its largest number, and what is just below that.
    assert there_and_back("bf16", from_bits(0x7F7F8000)).tolist() == [np.inf]
    assert there_and_back("bf16", from_bits(0x7F7F7FFF)).tobytes() == from_bits(0x7F7F0000).tobytes()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=600),
    st.sampled_from(sorted(CODES)),
)
def test_a_quantised_value_is_off_by_half_a_code_at_most(numbers: list[float], name: str) -> None:
    whole = values(*numbers)
    found = there_and_back(name, whole)
    for start in range(0, len(whole), BLOCK):
        block, got = whole[start : start + BLOCK].astype(np.float64), found[start : start + BLOCK]
        scale = np.abs(block).max() / CODES[name]
        # A scale among the denormals is itself off by up to half the tiniest number, at each code.
        slack = scale * 2.0**-20 + CODES[name] * TINIEST
        assert (np.abs(block - got) <= scale / 2 + slack).all()


@pytest.mark.parametrize("name", sorted(CODES))
def test_one_block_does_not_coarsen_the_next(name: str) -> None:
    small = np.full(BLOCK, 1.0, np.float32)
    found = there_and_back(name, np.concatenate([np.full(BLOCK, 1e30, np.float32), small]))
    assert np.abs(found[BLOCK:] - 1).max() < 1e-6


@pytest.mark.parametrize("name", sorted(CODES))
@pytest.mark.parametrize("largest", [3.3e38, -3.3e38, 1e38])
def test_numbers_up_to_3_3e38_stay_finite(name: str, largest: float) -> None:
    found = there_and_back(name, values(largest, 1.0, 0.0))
    assert np.isfinite(found).all()
    assert found.tolist() == pytest.approx([largest, 0.0, 0.0], rel=1e-6)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_before_it_is_encoded(name: str, bad: float) -> None:
    store = open_store("memory://")
    alone = exchange(store, 0, 1, wire_dtype=name)
    with pytest.raises(NonFinite, match="rank 0 round 0"):
        alone.run(0, values(1.0, bad), base(2))
    assert [key for key in store.keys("") if "/claims/" not in key] == []


@pytest.mark.parametrize("name", ["fp32", "int8", "int4"])  # bf16 rounds it up, as torch does
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_float_stays_finite(name: str, sign: int) -> None:
    """The exchange refuses infinities before it encodes, so a scale must not make one."""
    values = np.array([sign * np.finfo(np.float32).max, 1.0], np.float32)
    wire = FORMATS[name]
    decoded = wire.decode(memoryview(wire.encode(values)), len(values))
    assert np.isfinite(decoded).all()
    assert decoded[0] / values[0] == pytest.approx(1, rel=2**-8)
