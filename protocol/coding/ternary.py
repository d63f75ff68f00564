"""Keep the few largest numbers of an array; all other numbers become 0 (sparse ternary compression).

All kept numbers get the same absolute value, called `size`. Each number keeps its sign.

    content := u32 count | float32 size | u8 width | gaps in Rice code | signs        a sign of 1 is plus

A gap is the number of zeros before a kept number, so the positions ascend and no position can occur twice.

The algorithm is from Sattler et al., 2020: Robust and communication-efficient federated learning from non-i.i.d.
data. Here one threshold is used for all arrays of a kind. If each array kept a fixed share of its own numbers, some
layers would hardly learn.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from protofleet.protocol.coding.bits import (
    CHUNK,
    MOST_WIDTH,
    Whole,
    bytes_of,
    pack_bits,
    pack_rice,
    unpack_bits,
    unpack_rice,
)
from protofleet.protocol.coding.floats import Floats
from protofleet.protocol.wire.reasons import Reason, Rejected

HEAD: Final = struct.Struct("<IfB")
GOLDEN: Final = (math.sqrt(5) + 1) / 2


def largest(arrays: Sequence[Floats], count: int) -> list[Whole]:
    """Return for each flat array the positions of its numbers that are among the `count` largest of all arrays.

    Absolute values are compared. If absolute values are equal, numbers in earlier arrays and at lower positions are
    chosen first. A zero is never chosen. If some numbers are not finite, only numbers that are not
    finite are chosen. Then a reader refuses the arrays.
    """
    sizes = np.abs(np.concatenate([np.zeros(0, np.float32), *arrays]))
    if not (finite := np.isfinite(sizes)).all():
        sizes = np.where(finite, np.float32(0), np.float32(1))
    count = min(count, int(np.count_nonzero(sizes)))
    if not count:
        return [np.zeros(0, np.int64) for _ in arrays]
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen = sizes > least
    chosen[np.flatnonzero(sizes == least)[: count - int(chosen.sum())]] = True
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    return [np.flatnonzero(part) for part in np.split(chosen, ends)]


def width_for(count: int, numbers: int) -> int:
    """Return the best width of the remainders for random positions (Sattler et al., eq. 15)."""
    share = count / numbers
    if share >= 0.5:
        return 0
    best = 1 + math.floor(math.log2(math.log(GOLDEN - 1) / math.log1p(-share)))
    return min(max(best, 0), MOST_WIDTH)


def encode_ternary(values: Floats, positions: Whole) -> bytes:
    """Return the bytes of the numbers at these positions of a flat array; none of these numbers may be 0."""
    count = len(positions)
    if not count:
        return HEAD.pack(0, 0, 0)
    kept = values[positions]
    # cumsum adds the numbers in order. The order in np.sum depends on the processor.
    size = np.float32(np.cumsum(np.abs(kept), dtype=np.float64)[-1] / count)
    width = width_for(count, len(values))
    gaps = np.diff(positions, prepend=-1) - 1
    return HEAD.pack(count, size, width) + pack_rice(gaps, width) + pack_bits((kept > 0).astype(np.uint8))


def decode_ternary(data: bytes | memoryview, numbers: int, most: int) -> Floats:
    """Return the flat array; `most` is the largest count that is allowed."""
    if len(data) < HEAD.size:
        raise Rejected(Reason.BAD_BODY, f"{len(data)} bytes are too few for a ternary array")
    count, size, width = HEAD.unpack_from(data)
    _check_head(count, size, len(data), numbers, most)
    found = np.zeros(numbers, np.float32)
    if not count:
        return found
    gaps_end = len(data) - bytes_of(count)
    if gaps_end < HEAD.size:
        raise Rejected(Reason.BAD_BODY, f"{len(data)} bytes are too few for {count} kept numbers")
    gaps = unpack_rice(data[HEAD.size : gaps_end], count, width, numbers - count >> min(width, MOST_WIDTH))
    if (last := int(gaps.sum(dtype=np.int64)) + count - 1) >= numbers:
        raise Rejected(Reason.BAD_BODY, f"position {last} is outside an array of {numbers} numbers")
    gaps += 1
    ends = np.cumsum(gaps, out=gaps)  # the position of a kept number is below its end by 1
    signs = unpack_bits(data[gaps_end:], count)
    for start in range(0, count, CHUNK):  # NumPy copies positions to 64 bits
        part = slice(start, start + CHUNK)
        found[ends[part] - 1] = np.where(signs[part] > 0, np.float32(size), -np.float32(size))
    return found


def _check_head(count: int, size: float, length: int, numbers: int, most: int) -> None:
    if count > min(most, numbers):
        raise Rejected(Reason.BAD_BODY, f"{count} numbers are kept, but the limit is {min(most, numbers)}")
    if not math.isfinite(size):
        raise Rejected(Reason.NOT_FINITE, "the size of the kept numbers is not finite")
    if size < 0 or math.copysign(1, size) < 0 or (size == 0) != (count == 0):
        raise Rejected(Reason.BAD_BODY, f"{count} kept numbers cannot have the size {size:g}")
    if not count and length != HEAD.size:
        raise Rejected(Reason.BAD_BODY, f"{length} bytes are too many for an array without kept numbers")


def kept_in(data: bytes | memoryview) -> int:
    """Return how many numbers a record keeps, or raise Rejected if it has no head."""
    if len(data) < HEAD.size:
        raise Rejected(Reason.BAD_BODY, f"{len(data)} bytes are too few for a ternary array")
    return int(HEAD.unpack_from(data)[0])
