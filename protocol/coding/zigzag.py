"""Map signed whole numbers to numbers that are not negative: 0, -1, 1, -2 become 0, 1, 2, 3.

So small numbers of both signs become small numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_zigzag(signed: NDArray[np.signedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Return the numbers in the unsigned dtype of the same size."""
    sign = signed >> (8 * signed.itemsize - 1)
    found: NDArray[np.unsignedinteger[Any]] = (signed << 1 ^ sign).view(f"u{signed.itemsize}")
    return found


def from_zigzag(numbers: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.signedinteger[Any]]:
    """Return the numbers in the signed dtype of the same size."""
    signed: NDArray[np.signedinteger[Any]] = (numbers >> 1).view(f"i{numbers.itemsize}")
    signed ^= -(numbers & 1).view(signed.dtype)
    return signed
