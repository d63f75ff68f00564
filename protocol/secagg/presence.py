"""Encode which classes a device holds, for the sum that gives the number of holders of each class.

The stage `presence` is an attempt of its own, with its own keys and seeds: shares that open one sum must not open the
other. The vector has 1 for each class that the device holds and 0 for the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.field import Field, Words


def presence_field(devices: int) -> Field:
    """Return the field of the vectors of this stage, with as few bytes as possible."""
    return Field(devices, 1.0, 0, 8 if 2 * devices + 1 <= 1 << 8 else 16)


def presence_words(field: Field, counts: NDArray[np.int64]) -> Words:
    """Return the vector of a device with so many samples of each class."""
    return field.encode((counts > 0).astype(np.float64))
