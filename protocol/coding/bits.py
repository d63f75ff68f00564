"""Pack whole numbers into bits and back.

The first bit is the lowest bit of a byte. The unused bits after the last number are 0. A reader refuses bytes in
which an unused bit is 1, so equal numbers always have equal bytes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.wire.reasons import Reason, Rejected

Whole: TypeAlias = NDArray[np.int64] | NDArray[np.int32]
Bits: TypeAlias = NDArray[np.uint8]

# Largest number of bits of a remainder. This is enough, because a record has at most 2**20 numbers.
MOST_WIDTH: Final = 24
# Number of bytes of a stream that are unpacked together. A bit takes up to 24 bytes of memory while it is unpacked,
# so a stream is never unpacked whole.
CHUNK: Final = 1 << 10


def pack_bits(bits: Bits) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_bits(data: bytes | memoryview, count: int) -> Bits:
    """Return `count` bits, or raise Rejected if the length or the padding is wrong."""
    if len(data) != bytes_of(count):
        raise Rejected(Reason.BAD_BODY, f"{len(data)} bytes is the wrong length for {count} bits")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count:].any():
        raise Rejected(Reason.BAD_BODY, f"the padding after {count} bits is not 0")
    return bits[:count]


def bytes_of(bits: int) -> int:
    return (bits + 7) // 8


def pack_fixed(values: Whole, width: int) -> bytes:
    """Return the numbers, each in `width` bits."""
    if width == 0:
        return b""
    shifts = np.arange(width, dtype=np.uint32)
    return pack_bits(((values[:, None].astype(np.uint32) >> shifts) & 1).astype(np.uint8).reshape(-1))


def unpack_fixed(data: bytes | memoryview, count: int, width: int) -> NDArray[np.int32]:
    """Return `count` numbers of `width` bits each, or raise Rejected if the length or the padding is wrong."""
    if len(data) != bytes_of(count * width):
        raise Rejected(
            Reason.BAD_BODY, f"{len(data)} bytes is the wrong length for {count} numbers of {width} bits"
        )
    found = np.zeros(count, np.int32)
    for start in range(0, count if width else 0, CHUNK):  # CHUNK numbers of `width` bits end at a whole byte
        part = found[start : start + CHUNK]
        first, last = start * width // 8, bytes_of((start + len(part)) * width)
        bits = unpack_bits(data[first:last], len(part) * width).reshape(len(part), width)
        for place in range(width):
            part |= bits[:, place].astype(np.int32) << place
    return found


def pack_halves(values: Bits) -> bytes:
    """Return the numbers in 4 bits each. A byte holds two numbers, the first of them in its lower half."""
    padded = np.append(values, np.uint8(0)) if len(values) % 2 else values
    return (padded[::2] | (padded[1::2] << 4)).tobytes()


def unpack_halves(data: bytes | memoryview, count: int) -> Bits:
    if len(data) != bytes_of(4 * count):
        raise Rejected(
            Reason.BAD_BODY, f"{len(data)} bytes is the wrong length for {count} numbers of 4 bits"
        )
    both = np.frombuffer(data, np.uint8)
    found = np.empty(2 * len(both), np.uint8)
    found[::2], found[1::2] = both & 15, both >> 4
    if found[count:].any():
        raise Rejected(Reason.BAD_BODY, f"the padding after {count} numbers is not 0")
    return found[:count]


def rice_bytes(values: Whole, width: int) -> int:
    """Return the size of `pack_rice` without packing."""
    return bytes_of(int((values >> width).sum()) + len(values)) + bytes_of(len(values) * width)


def pack_rice(values: Whole, width: int) -> bytes:
    """Return non-negative numbers in Rice code: all quotients in unary, then all remainders of `width` bits.

    A quotient q is q bits of 0 and one bit of 1. NumPy can read each stream in one step.
    """
    ends = np.cumsum((values >> width) + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return pack_bits(bits) + pack_fixed(values & ((1 << width) - 1), width)


def unpack_rice(data: bytes | memoryview, count: int, width: int, most: int) -> NDArray[np.int32]:
    """Return `count` numbers in Rice code, or raise Rejected.

    `most` is the largest sum that the quotients may have. An int32 can hold each number, because a record has at most
    2**20 numbers.
    """
    if width > MOST_WIDTH:
        raise Rejected(Reason.BAD_BODY, f"the remainders have {width} bits, but the limit is {MOST_WIDTH}")
    unary = len(data) - bytes_of(count * width)
    if not bytes_of(count) <= unary <= bytes_of(count + most):
        raise Rejected(
            Reason.BAD_BODY,
            f"{len(data)} bytes is a wrong length for {count} numbers with remainders of {width} bits",
        )
    found = _quotients(data[:unary], count)
    found <<= width
    found |= unpack_fixed(data[unary:], count, width)
    return found


def _quotients(data: bytes | memoryview, count: int) -> NDArray[np.int32]:
    """Return the numbers of a unary stream. The last byte of the stream must contain the end of the last number."""
    found, at, last = np.empty(count, np.int32), 0, -1
    for start in range(0, len(data), CHUNK):
        part = np.frombuffer(data[start : start + CHUNK], np.uint8)
        ends = np.flatnonzero(np.unpackbits(part, bitorder="little")) + start * 8
        if at + len(ends) > count:
            raise Rejected(Reason.BAD_BODY, f"a unary stream has more than {count} numbers")
        found[at : at + len(ends)] = np.diff(ends, prepend=last) - 1
        at, last = at + len(ends), int(ends[-1]) if len(ends) else last
    if at != count or bytes_of(last + 1) != len(data):
        raise Rejected(
            Reason.BAD_BODY, f"a unary stream has {at} numbers in {len(data)} bytes, but must have {count}"
        )
    return found
