"""The two floating-point forms of 16 bits: float16 of IEEE 754, and bfloat16, the upper half of a float32."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.wire.messages import Array

Floats: TypeAlias = NDArray[np.float32]


def float16_of(values: Array) -> NDArray[np.float16]:
    """Return the nearest float16, ties to even; a number above 65,504 becomes an infinity."""
    with np.errstate(over="ignore"):
        return values.astype("<f2")


def bfloat16_of(values: Array) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even; the largest numbers of a float32 become an infinity."""
    raw = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype("<u2")


def bfloat16_not_below(values: Array) -> NDArray[np.uint16]:
    """Round each number up to a bfloat16, and return the bits; the numbers must not be negative."""
    raw = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((raw + 0xFFFF) >> 16).astype("<u2")


def from_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)
