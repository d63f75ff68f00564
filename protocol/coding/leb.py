"""Write and read whole numbers in LEB128.

Each byte has seven bits of the number; the first byte has the lowest bits. The highest bit of a byte is 1 if another
byte follows.

Signed numbers are zigzagged first (0, -1, 1, -2 become 0, 1, 2, 3), so small numbers of both signs take one byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.wire.messages import Array
from protofleet.protocol.wire.reasons import Reason, Rejected

MOST_BYTES: Final = 10  # largest size of a number of 64 bits


def pack_one(value: int) -> bytes:
    """Return the bytes of a number that is not negative, such as a length."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def pack_ints(values: Array) -> bytes:
    """Return the bytes of an array of whole numbers or bools."""
    signed = values.reshape(-1).astype(np.int64)
    rest = (signed << 1 ^ signed >> 63).view(np.uint64)
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


def unpack_ints(data: bytes | memoryview, count: int) -> NDArray[np.int64]:
    """Return the numbers in `data`; raise Rejected for a malformed number, or if there are not exactly `count`."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if len(ends) != count or (len(raw) and (not len(ends) or ends[-1] != len(raw) - 1)):
        raise Rejected(
            Reason.BAD_BODY,
            f"{len(ends)} whole numbers are in {len(raw)} bytes, but exactly {count} are expected",
        )
    lengths = np.diff(ends, prepend=-1)
    if lengths.max(initial=0) > MOST_BYTES or (raw[ends[lengths == MOST_BYTES]] > 1).any():
        raise Rejected(Reason.BAD_BODY, "a whole number has more than 64 bits")
    if (raw[ends[lengths > 1]] == 0).any():
        raise Rejected(Reason.BAD_BODY, "a whole number is written in more bytes than it needs")
    found = np.zeros(count, np.uint64)
    starts = ends - lengths + 1
    for place in range(int(lengths.max(initial=0))):
        here = lengths > place
        found[here] |= (raw[starts[here] + place] & np.uint64(127)).astype(np.uint64) << np.uint64(7 * place)
    signed: NDArray[np.int64] = (found >> np.uint64(1)).view(np.int64)
    signed ^= -(found & np.uint64(1)).view(np.int64)
    return signed
