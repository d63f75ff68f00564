"""Encode numbers as whole numbers of a fixed width, whose sum modulo 2^bits is exact.

A number x between -limit and limit becomes round(x * 2^fraction), halves to even, modulo 2^bits. The sum of all
devices fits into `bits` if devices * ceil(limit * 2^fraction) * 2 + 1 <= 2^bits. A field for which this is not true
cannot be made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault

Words: TypeAlias = NDArray[np.uint32]  # numbers modulo 2^bits

LEAST_BITS: Final = 8
MOST_BITS: Final = 32
MOST_FRACTION: Final = 30
MOST_DEVICES: Final = 512  # devices of one roster


@dataclass(frozen=True, slots=True)
class Field:
    """The fixed-point form of the numbers of a vector.

    Raise ValueError if the sum of all devices could be larger than the words.
    """

    devices: int  # largest number of devices whose numbers are added
    limit: float  # largest absolute value of a number, after it was multiplied with its weight
    fraction: int  # bits behind the point
    bits: int  # bits of a word

    def __post_init__(self) -> None:
        _check_between("devices", self.devices, 1, MOST_DEVICES)
        _check_between("fraction", self.fraction, 0, MOST_FRACTION)
        _check_between("bits", self.bits, LEAST_BITS, MOST_BITS)
        if not 0 < self.limit < 2.0**MOST_BITS:
            raise ValueError(f"limit is {self.limit:g}, it must be larger than 0 and less than 2^{MOST_BITS}")
        if self.devices * self.steps * 2 + 1 > 1 << self.bits:
            need = (self.devices * self.steps * 2).bit_length()
            raise ValueError(
                f"the sum of {self.devices} devices with numbers up to {self.limit:g} and {self.fraction} bits "
                f"behind the point needs {need} bits, but bits is {self.bits}; use more bits, a smaller limit or a "
                "smaller fraction"
            )

    @property
    def steps(self) -> int:
        """Return the largest absolute value of an encoded number."""
        return math.ceil(self.limit * (1 << self.fraction))

    def rounded(self, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return round(x * 2^fraction) of each number.

        Raise SecaggError if a number is outside of the limit or not finite; a number is never clipped.
        """
        found = np.asarray(numbers, np.float64)
        inside = np.abs(found) <= self.limit  # False for NaN
        if not inside.all():
            first = int(np.flatnonzero(~inside.reshape(-1))[0])
            raise SecaggError(
                SecaggFault.OUT_OF_RANGE,
                f"{int((~inside).sum())} of {found.size} numbers are outside of -{self.limit:g} to {self.limit:g}; "
                f"number {first} is {found.reshape(-1)[first]:g}; set a larger limit",
            )
        return np.rint(found * (1 << self.fraction)).astype(np.int64)

    def wrapped(self, whole: NDArray[np.int64]) -> Words:
        """Return whole numbers modulo 2^bits."""
        return (whole & ((1 << self.bits) - 1)).astype(np.uint32)

    def encode(self, numbers: NDArray[np.float64]) -> Words:
        """Return the words of numbers, or raise SecaggError if a number is outside of the limit."""
        return self.wrapped(self.rounded(numbers))

    def add(self, one: Words, other: Words) -> Words:
        return lowest_bits(one + other, self.bits)

    def subtract(self, one: Words, other: Words) -> Words:
        return lowest_bits(one - other, self.bits)

    def signed(self, words: Words) -> NDArray[np.int64]:
        """Return words as whole numbers from -2^(bits - 1) to 2^(bits - 1) - 1."""
        half = 1 << (self.bits - 1)
        return ((words.astype(np.int64) + half) & (2 * half - 1)) - half

    def decode(self, words: Words) -> NDArray[np.float64]:
        return self.signed(words) / (1 << self.fraction)


def lowest_bits(words: Words, bits: int) -> Words:
    """Return each word modulo 2^bits."""
    found: Words = words & np.uint32((1 << bits) - 1)
    return found


def _check_between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, it must be between {least} and {most}")
