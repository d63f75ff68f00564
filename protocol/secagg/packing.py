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


def check_packed(data: bytes, length: int, bits: int) -> None:
    """Raise SecaggError if these bytes are not `length` words of `bits` bits."""
    if len(data) != packed_bytes(length, bits):
        raise SecaggError(
            SecaggFault.MALFORMED,
            f"{len(data)} bytes is the wrong length for {length} words of {bits} bits; it must be "
            f"{packed_bytes(length, bits)}",
        )
    if length * bits % 8 and data[-1] >> (length * bits % 8):
        raise SecaggError(SecaggFault.MALFORMED, f"the unused bits after {length} words are not 0")


def unpack(data: bytes, length: int, bits: int) -> Words:
    """Return `length` words of `bits` bits, or raise SecaggError if the length or the unused bits are wrong."""
    check_packed(data, length, bits)
    if bits == 32:
        return np.frombuffer(data, "<u4").astype(np.uint32)
    rows = np.zeros((-(-length // TOGETHER), bits), np.uint8)
    rows.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    found = np.empty((len(rows), TOGETHER), np.uint32)
    for word in range(TOGETHER):
        found[:, word] = _word(rows, word, bits)
    return found.reshape(-1)[:length]


def _word(rows: NDArray[np.uint8], word: int, bits: int) -> NDArray[np.uint64]:
    """Return one word of each row; a word has bits of at most five bytes."""
    first, shift = divmod(word * bits, 8)
    value = rows[:, first].astype(np.uint64)
    for place in range(1, -(-(shift + bits) // 8)):
        value |= rows[:, first + place].astype(np.uint64) << np.uint64(8 * place)
    value >>= np.uint64(shift)
    value &= np.uint64((1 << bits) - 1)
    return value
