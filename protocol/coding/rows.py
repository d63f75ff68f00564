"""Code numbers in 8 or 4 bits, with one scale for each row.

A row is all numbers with the same first index of an array. A vector is one row.

    scale  = bfloat16 of (largest absolute value in the row / largest code), rounded up
    number = scale * code in float32

Scales are rounded up, so that no code exceeds the largest code. The error of a number is at most half a scale, or one
scale if rounding is stochastic. All scales come first, then all codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.coding.bits import (
    bytes_of,
    pack_halves,
    pack_rice,
    rice_bytes,
    unpack_halves,
    unpack_rice,
)
from protofleet.protocol.coding.floats import Floats, bfloat16_not_below, from_bfloat16
from protofleet.protocol.coding.zigzag import from_zigzag, to_zigzag
from protofleet.protocol.wire.reasons import Reason, Rejected

Codes: TypeAlias = NDArray[np.int8] | NDArray[np.uint8]

SIGN: Final = 0x8000
EXPONENT: Final = 0x7F80
RICE_WIDTHS: Final = range(4)  # a zigzagged code of 4 bits is at most 14, so wider remainders save no bytes


@dataclass(frozen=True, slots=True)
class CodeGrid:
    """The codes that a number of a row can have: -top to top, or 0 to top."""

    bits: int
    signed: bool

    @property
    def top(self) -> int:
        return (1 << self.bits - 1) - 1 if self.signed else (1 << self.bits) - 1


INT8: Final = CodeGrid(8, True)
INT4: Final = CodeGrid(4, True)
UINT8: Final = CodeGrid(8, False)
UINT4: Final = CodeGrid(4, False)


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many rows there are, and how many numbers each row has."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, math.prod(shape) // rows if rows else 0


def quantize(
    values: Floats, grid: CodeGrid, chance: np.random.Generator | None = None
) -> tuple[NDArray[np.uint16], Floats]:
    """Return a scale for each row and the codes [rows, numbers]; with `chance`, rounding is stochastic.

    If a row is not finite, its scale is not finite either, so a reader refuses the row.
    """
    rows = values.reshape(rows_of(values.shape))
    scales = bfloat16_not_below(np.abs(rows).max(1, initial=0) / np.float32(grid.top))
    steps = from_bfloat16(scales)[:, None]
    with np.errstate(all="ignore"):
        ratios = rows / steps
    exact = np.where(np.isfinite(ratios), ratios, np.float32(0))
    codes = np.rint(exact) if chance is None else np.floor(exact + chance.random(exact.shape, np.float32))
    return scales, np.clip(codes, -grid.top if grid.signed else 0, grid.top)


def encode_rows(values: Floats, grid: CodeGrid, chance: np.random.Generator | None = None) -> bytes:
    scales, codes = quantize(values, grid, chance)
    return scales.tobytes() + _pack(codes.reshape(-1), grid)


def _pack(codes: Floats, grid: CodeGrid) -> bytes:
    if grid.bits == 8:
        return codes.astype(np.int8 if grid.signed else np.uint8).tobytes()
    return pack_halves((codes + (grid.top if grid.signed else 0)).astype(np.uint8))


def size_of_rows(shape: tuple[int, ...], grid: CodeGrid) -> int:
    return 2 * rows_of(shape)[0] + bytes_of(math.prod(shape) * grid.bits)


def decode_rows(data: bytes | memoryview, shape: tuple[int, ...], grid: CodeGrid) -> Floats:
    if len(data) != size_of_rows(shape, grid):
        raise Rejected(
            Reason.BAD_BODY,
            f"{len(data)} bytes is the wrong length for rows of shape {shape} in {grid.bits} bits",
        )
    (rows, _), count = rows_of(shape), math.prod(shape)
    return _numbers(data[: 2 * rows], _unpack(data[2 * rows :], count, grid), shape)


def _unpack(data: bytes | memoryview, count: int, grid: CodeGrid) -> Codes:
    if not grid.signed:
        return np.frombuffer(data, np.uint8) if grid.bits == 8 else unpack_halves(data, count)
    if grid.bits == 8:
        codes = np.frombuffer(data, np.int8)
        if (codes == -128).any():
            raise Rejected(Reason.BAD_BODY, "a code of 8 bits is -128")
        return codes
    halves = unpack_halves(data, count)
    if (halves == 15).any():
        raise Rejected(Reason.BAD_BODY, "a signed code of 4 bits is 15")
    signed: Codes = halves.astype(np.int8) - np.int8(grid.top)
    return signed


def encode_rice_rows(values: Floats, chance: np.random.Generator | None = None) -> bytes:
    """Quantize to signed codes of 4 bits, map the codes to zigzag integers, and write the integers in Rice code."""
    scales, codes = quantize(values, INT4, chance)
    zigzag = to_zigzag(codes.reshape(-1).astype(np.int8)).astype(np.int64)
    width = min(RICE_WIDTHS, key=lambda width: rice_bytes(zigzag, width))
    return scales.tobytes() + bytes([width]) + pack_rice(zigzag, width)


def most_rice_bytes(shape: tuple[int, ...]) -> int:
    """Return the largest size of rice rows.

    A sender chooses the width that takes the fewest bytes, so a width of 3 bits gives an upper bound. With this
    width, a code has at most 5 bits.
    """
    count = math.prod(shape)
    return 2 * rows_of(shape)[0] + 1 + bytes_of(2 * count) + bytes_of(3 * count)


def decode_rice_rows(data: bytes | memoryview, shape: tuple[int, ...]) -> Floats:
    (rows, _), count = rows_of(shape), math.prod(shape)
    if not 2 * rows < len(data) <= most_rice_bytes(shape):
        raise Rejected(Reason.BAD_BODY, f"{len(data)} bytes is a wrong length for rice rows of shape {shape}")
    width, highest = data[2 * rows], 2 * INT4.top
    zigzag = unpack_rice(data[2 * rows + 1 :], count, width, (highest >> min(width, 4)) * count)
    if (zigzag > highest).any():
        raise Rejected(Reason.BAD_BODY, f"a zigzagged code of 4 bits is above {highest}")
    codes = from_zigzag(zigzag.astype(np.uint8))
    return _numbers(data[: 2 * rows], codes, shape)


def _numbers(scales: bytes | memoryview, codes: Codes, shape: tuple[int, ...]) -> Floats:
    """Return scale * code, rounded once; raise Rejected for a scale that no encoder writes."""
    bits = np.frombuffer(scales, "<u2")
    if ((bits & EXPONENT) == EXPONENT).any():
        raise Rejected(Reason.NOT_FINITE, "a scale is not finite")
    if (bits & SIGN).any():
        raise Rejected(Reason.BAD_BODY, "a scale is negative")
    found = codes.astype(np.float32).reshape(rows_of(shape))
    with np.errstate(over="ignore"):  # a later check refuses infinite numbers
        found *= from_bfloat16(bits)[:, None]
    return found.reshape(shape)
