"""Decide which classes are uploaded, from the number of devices that hold samples of each class.

The stage `presence` is an attempt of its own, with its own keys and seeds: shares that open one sum must not open the
other. The vector has 1 for each class that the device holds and 0 for the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.field import Field, Words

# A class with fewer holders is not uploaded. Holders that work with the coordinator do not protect the others, so
# against f such devices the number must be f + 2.
HOLDERS: Final = 3


def presence_field(devices: int) -> Field:
    """Return the field of the vectors of this stage, with as few bytes as possible."""
    return Field(devices, 1.0, 0, 8 if 2 * devices + 1 <= 1 << 8 else 16)


def presence_words(field: Field, counts: NDArray[np.int64]) -> Words:
    """Return the vector of a device with so many samples of each class."""
    return field.encode((counts > 0).astype(np.float64))


def uploaded_classes(field: Field, total: Words, holders: int = HOLDERS) -> NDArray[np.bool_]:
    """Return True for each class with at least so many holders in the sum of the vectors."""
    found: NDArray[np.bool_] = field.signed(total) >= holders
    return found
