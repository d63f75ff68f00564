"""Pack words of 8 to 32 bits into bytes, and back.

The words follow each other without gaps, the lowest bit of a word first, in the lowest free bit of a byte. The
unused bits of the last byte are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Words

TOGETHER = 8  # Eight words of any width end at a whole byte.


def packed_bytes(length: int, bits: int) -> int:
    """Return the size of `length` words of `bits` bits."""
    return (length * bits + 7) // 8


def pack(words: Words, bits: int) -> bytes:
    """Return the words, each less than 2^bits, in `bits` bits each."""
    if bits == 32:
        return words.astype("<u4").tobytes()
    rows = np.zeros((-(-len(words) // TOGETHER), TOGETHER), np.uint32)
    rows.reshape(-1)[: len(words)] = words
    found = np.empty((len(rows), bits), np.uint8)
    for place in range(bits):  # one byte of each row; a byte has bits of at most two words
        word, shift = divmod(8 * place, bits)
        part = rows[:, word] >> np.uint32(shift)
        if shift + 8 > bits:
            part = part | (rows[:, word + 1] << np.uint32(bits - shift))
        found[:, place] = part & np.uint32(255)
    return found.tobytes()[: packed_bytes(len(words), bits)]


def unpack(data: bytes, length: int, bits: int) -> Words:
    """Return `length` words of `bits` bits, or raise SecaggError if the length or the unused bits are wrong."""
    if len(data) != packed_bytes(length, bits):
        raise SecaggError(
            SecaggFault.MALFORMED,
            f"{len(data)} bytes is the wrong length for {length} words of {bits} bits; it must be "
            f"{packed_bytes(length, bits)}",
        )
    if length * bits % 8 and data[-1] >> (length * bits % 8):
        raise SecaggError(SecaggFault.MALFORMED, f"the unused bits after {length} words are not 0")
    if bits == 32:
        return np.frombuffer(data, "<u4").astype(np.uint32)
    rows = _rows(data, length, bits)
    found = np.empty((len(rows), TOGETHER), np.uint32)
    for word in range(TOGETHER):
        first, shift = divmod(word * bits, 8)
        value = rows[:, first] >> np.uint64(shift)
        for place in range(1, -(-(shift + bits) // 8)):  # a word has bits of at most five bytes
            value = value | (rows[:, first + place] << np.uint64(8 * place - shift))
        found[:, word] = value & np.uint64((1 << bits) - 1)
    return found.reshape(-1)[:length]


def _rows(data: bytes, length: int, bits: int) -> NDArray[np.uint64]:
    """Return the bytes in rows of TOGETHER words; the last row is filled with 0."""
    rows = np.zeros((-(-length // TOGETHER), bits), np.uint64)
    rows.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    return rows
