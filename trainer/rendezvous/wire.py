"""How float32 values travel: as they are, rounded to bfloat16, or quantised in blocks.

The quantised formats are blockwise absmax: each block of 256 values shares one float32 scale, its
largest magnitude over the largest code (LLM.int8(), arXiv:2208.07339, does so by rows). A chunk is
encoded by itself, scales first, then codes, so that any chunk can be fetched, checked and decoded
alone; and since chunks are whole blocks, cutting a tensor in other places changes no bit.

numpy, because its arithmetic rounds each operation once and leaves the interpreter's lock alone.
Where a value doesn't fit (NaN, infinity) nothing is said here: the exchange refuses it before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK: Final = 256  # values that share a scale; every chunk and slice is a multiple of it
_SCALE_BYTES: Final = 4
_LARGEST_FLOAT: Final = np.finfo(np.float32).max

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WireFormat:
    """A way to write float32 values as bytes. `size_of(n)` is the length of n encoded values."""

    name: str
    bits: int
    has_scales: bool
    encode: Callable[[Floats], bytes | memoryview]
    decode: Callable[[memoryview, int], Floats]

    def size_of(self, count: int) -> int:
        scales = -(-count // BLOCK) * _SCALE_BYTES if self.has_scales else 0
        return scales + -(-count * self.bits // 8)

    @property
    def is_exact(self) -> bool:
        return self.name == "fp32"


def _encode_fp32(values: Floats) -> memoryview:
    return values.data.cast("B")


def _decode_fp32(data: memoryview, count: int) -> Floats:
    return np.frombuffer(data, np.float32, count)


def _encode_bf16(values: Floats) -> bytes:
    """Round to nearest, ties to even: add half of what is cut off, and one more where that is odd."""
    bits = values.view(np.uint32)
    rounded = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    return (rounded >> np.uint32(16)).astype(np.uint16).tobytes()


def _decode_bf16(data: memoryview, count: int) -> Floats:
    high = np.frombuffer(data, np.uint16, count).astype(np.uint32)
    high <<= np.uint32(16)
    return high.view(np.float32)


def _quantise(values: Floats, largest: int) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Scales, one a block, and codes from -largest to largest, padded with zeros to whole blocks."""
    blocks = -(-len(values) // BLOCK)
    if len(values) != blocks * BLOCK:
        values = np.concatenate([values, np.zeros(blocks * BLOCK - len(values), np.float32)])
    table = values.reshape(blocks, BLOCK)
    scales = np.abs(table).max(axis=1)
    scales /= np.float32(largest)
    # Of a block that reaches to the end of float32 the scale may round up, and the value then to infinity.
    np.minimum(scales, np.nextafter(_LARGEST_FLOAT / np.float32(largest), np.float32(0)), out=scales)
    # A block of zeros, or of values too small for a scale, has codes of zero.
    divisor = np.where(scales > 0, scales, np.float32(1))
    codes = table / divisor[:, None]
    np.rint(codes, out=codes)
    np.clip(codes, -largest, largest, out=codes)
    return scales, codes.astype(np.int8).reshape(-1)


def _scaled(scales: Floats, codes: npt.NDArray[np.int8], count: int) -> Floats:
    table = codes.reshape(len(scales), BLOCK).astype(np.float32)
    table *= scales[:, None]
    return table.reshape(-1)[:count]


def _encode_int8(values: Floats) -> bytes:
    scales, codes = _quantise(values, 127)
    return scales.tobytes() + codes[: len(values)].tobytes()


def _decode_int8(data: memoryview, count: int) -> Floats:
    blocks = -(-count // BLOCK)
    codes = np.zeros(blocks * BLOCK, np.int8)
    codes[:count] = np.frombuffer(data, np.int8, count, blocks * _SCALE_BYTES)
    return _scaled(np.frombuffer(data, np.float32, blocks), codes, count)


def _encode_int4(values: Floats) -> bytes:
    """Codes from -7 to 7, shifted to 1..15, two a byte, the first in the low half."""
    scales, codes = _quantise(values, 7)
    nibbles = (codes + np.int8(8)).astype(np.uint8)
    packed = nibbles[0::2] | (nibbles[1::2] << np.uint8(4))
    return scales.tobytes() + packed[: -(-len(values) // 2)].tobytes()


def _decode_int4(data: memoryview, count: int) -> Floats:
    blocks = -(-count // BLOCK)
    packed = np.frombuffer(data, np.uint8, -(-count // 2), blocks * _SCALE_BYTES)
    codes = np.zeros(blocks * BLOCK, np.int8)
    codes[0 : 2 * len(packed) : 2] = (packed & np.uint8(15)).astype(np.int8) - np.int8(8)
    codes[1 : 2 * len(packed) : 2] = (packed >> np.uint8(4)).astype(np.int8) - np.int8(8)
    return _scaled(np.frombuffer(data, np.float32, blocks), codes, count)


FORMATS: Final = {
    made.name: made
    for made in (
        WireFormat("fp32", 32, False, _encode_fp32, _decode_fp32),
        WireFormat("bf16", 16, False, _encode_bf16, _decode_bf16),
        WireFormat("int8", 8, True, _encode_int8, _decode_int8),
        WireFormat("int4", 4, True, _encode_int4, _decode_int4),
    )
}
