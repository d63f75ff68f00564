"""Draw discrete Gaussian noise, with random bits that nobody can compute from anything that is stored.

P(y) is in proportion to exp(-y^2 / (2 sigma^2)) on the whole numbers (Canonne, Kamath, Steinke, 2020). A table has
the borders of |y| in [0, 1) with 127 bits. 63 random bits find the number between two borders. If they equal the
first 63 bits of a border, 64 more bits decide. A last bit is the sign. No float takes part, so the table has the same
bits on every machine, and its distance to the law is computed with the table.

The bits are the key stream of AES-256-CTR with a key from the operating system, a new key for each vector. A device
keeps the key of an attempt to mask its vector, so that it masks the same vector again after a restart.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Whole: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
RandomWords: TypeAlias = Callable[[int], Words]  # function that returns so many random numbers of 64 bits

LARGEST_SIGMA: Final = float(1 << 17)  # The table of a larger sigma would take more than 30 MB.
SMALLEST_SIGMA: Final = 0.5
BITS: Final = 127  # Bits of a border; 63 of them are in the first table, 64 in the second.
_EXACT: Final = 192  # Bits behind the point of the fixed-point numbers from which the borders are computed.
REACH: Final = 14  # The table ends at this multiple of sigma; the probability beyond it is below 2^-146.


def noise_key() -> bytes:
    """Return a new key from the operating system."""
    return secrets.token_bytes(32)


class KeyStream:
    """The key stream of AES-256-CTR; without a key, each object draws its own."""

    def __init__(self, key: bytes | None = None) -> None:
        cipher = Cipher(algorithms.AES(key or noise_key()), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()

    def __call__(self, count: int) -> Words:
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), "<u8").astype(np.uint64)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """The table of one sigma."""

    sigma: float
    high: Words  # First 63 bits of the upper border of |y| = 0, 1, 2, ...; the last border is 2^63.
    low: Words  # The 64 bits after them.
    distance: float  # Upper bound of the distance, in total variation, between what is drawn and the law.

    def draw(self, count: int, words: RandomWords | None = None) -> Whole:
        """Return independent numbers; `words` is given only by tests."""
        words = words or KeyStream()
        found = words(count)
        head, negative = found >> np.uint64(1), (found & np.uint64(1)).astype(bool)
        size: Whole = np.searchsorted(self.high, head, side="left").astype(np.int64)
        # The first border that is not smaller may be equal. Then the remaining bits decide, from border to border.
        for at in np.flatnonzero(self.high[size] == head):
            size[at] = self._size_at_border(int(head[at]), int(words(1)[0]), int(size[at]))
        size[negative] *= -1
        return size

    def _size_at_border(self, head: int, tail: int, size: int) -> int:
        while int(self.high[size]) == head and int(self.low[size]) <= tail:
            size += 1
        return size


@lru_cache(maxsize=2)
def discrete_gaussian(sigma: float) -> DiscreteGaussian:
    """Return the table of a sigma, which takes some tenths of a second for the largest."""
    if not SMALLEST_SIGMA <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma is {sigma:g} steps, it must be from {SMALLEST_SIGMA:g} to {LARGEST_SIGMA:g}")
    weights = _weights(sigma)
    # |y| > 0 stands for two numbers.
    total = 2 * sum(weights) - weights[0]
    high, low, seen = array("Q"), array("Q"), -weights[0]
    for weight in weights:
        seen += 2 * weight
        border = (seen << BITS) // total
        high.append(border >> 64)
        low.append(border & (1 << 64) - 1)
    # Each border is less than 2^-127 too low. The end of the table and the fixed-point numbers add less than this.
    distance = 2 * len(weights) * 2.0**-BITS
    return DiscreteGaussian(sigma, np.array(high, np.uint64), np.array(low, np.uint64), distance)


def _weights(sigma: float) -> list[int]:
    """Return exp(-y^2 / (2 sigma^2)) for y = 0, 1, 2, ... as fixed-point numbers."""
    first = _exp_minus(1 / (2 * Fraction(sigma) ** 2))
    square, ratio, weight = first * first >> _EXACT, first, 1 << _EXACT
    weights = [weight]
    for _ in range(math.ceil(REACH * sigma)):
        # The weight of y + 1 is the weight of y times exp(-(2 y + 1) / (2 sigma^2)).
        weight, ratio = weight * ratio >> _EXACT, ratio * square >> _EXACT
        weights.append(weight)
    return weights


def _exp_minus(x: Fraction) -> int:
    """Return exp(-x) for x from 0 to 2 as a fixed-point number."""
    bits = _EXACT + 32
    fixed = (x.numerator << bits) // x.denominator
    term = total = 1 << bits
    count = 0
    while term:
        count += 1
        term = (term * fixed >> bits) // count
        total += -term if count % 2 else term
    return total >> 32
