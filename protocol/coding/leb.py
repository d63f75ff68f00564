"""Write and read whole numbers in LEB128.

Each byte has seven bits of the number; the first byte has the lowest bits. The highest bit of a byte is 1 if another
byte follows.

Signed numbers are zigzagged first, so small numbers of both signs take one byte.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.coding.zigzag import from_zigzag, to_zigzag
from protofleet.protocol.wire.arrays import DTYPES
from protofleet.protocol.wire.messages import Array
from protofleet.protocol.wire.reasons import Reason, Rejected

MOST_BYTES: Final = 10  # largest size of a number of 64 bits
# Number of bytes that are read together. A byte takes up to 60 bytes of memory while it is read.
CHUNK: Final = 1 << 12
INT64: Final = DTYPES["int64"]
# The lowest and the highest number of each dtype of whole numbers. To make an iinfo takes longer than to check 100
# numbers.
RANGES: Final = {
    dtype: (0, 1) if dtype == np.bool_ else (int(np.iinfo(dtype.str).min), int(np.iinfo(dtype.str).max))
    for dtype in DTYPES.values()
    if dtype.kind in "iub"
}


def pack_one(value: int) -> bytes:
    """Return the bytes of a number that is not negative, such as a length."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def pack_ints(values: Array) -> bytes:
    """Return the bytes of an array of whole numbers or bools."""
    rest = to_zigzag(values.reshape(-1).astype(np.int64))
    lengths = np.ones(len(rest), np.int64)
    for place in range(1, MOST_BYTES):
        lengths += rest >= np.uint64(1) << np.uint64(7 * place)
    ends = np.cumsum(lengths)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    starts = ends - lengths
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        more = (lengths[here] > place + 1).astype(np.uint8) << 7
        septet = (rest[here] >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(127)
        out[starts[here] + place] = septet | more
    return out.tobytes()


def unpack_ints(data: bytes | memoryview, count: int, dtype: np.dtype[np.generic] = INT64) -> Array:
    """Return the numbers in `data` in their dtype.

    Raise Rejected for a malformed number, a number that does not fit into the dtype, or if there are not exactly
    `count` numbers.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = int(np.count_nonzero(raw < 128))
    if ends != count or (len(raw) and raw[-1] >= 128):
        raise Rejected(
            Reason.BAD_BODY,
            f"{ends} whole numbers are in {len(raw)} bytes, but exactly {count} are expected",
        )
    if len(raw) == count:  # Counts and labels: each number has one byte.
        return _within(from_zigzag(raw), dtype)
    found, at, start = np.empty(count, dtype), 0, 0
    while start < len(raw):
        values, size = _first_numbers(raw[start : start + CHUNK])
        found[at : at + len(values)] = _within(values, dtype)
        at, start = at + len(values), start + size
    return found


def _first_numbers(raw: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int]:
    """Return the numbers that end in these bytes, and the size of these numbers in bytes."""
    ends = np.flatnonzero(raw < 128)
    lengths = np.diff(ends, prepend=-1)
    longest = lengths.max(initial=0)
    if not len(ends) or longest > MOST_BYTES or (raw[ends[lengths == MOST_BYTES]] > 1).any():
        raise Rejected(Reason.BAD_BODY, "a whole number has more than 64 bits")
    if (raw[ends[lengths > 1]] == 0).any():
        raise Rejected(Reason.BAD_BODY, "a whole number is written in more bytes than it needs")
    found = np.zeros(len(ends), np.uint64)
    starts = ends - lengths + 1
    for place in range(int(longest)):
        here = lengths > place
        found[here] |= (raw[starts[here] + place] & np.uint64(127)).astype(np.uint64) << np.uint64(7 * place)
    return np.asarray(from_zigzag(found), np.int64), int(ends[-1]) + 1


def _within(values: NDArray[np.signedinteger[Any]], dtype: np.dtype[np.generic]) -> Array:
    """Return the numbers in their dtype, or raise Rejected if one does not fit into it."""
    low, high = RANGES[dtype]
    if len(values) and not (low <= int(values.min()) and int(values.max()) <= high):
        raise Rejected(Reason.BAD_BODY, f"a whole number does not fit into {dtype.name}")
    return values.astype(dtype)
