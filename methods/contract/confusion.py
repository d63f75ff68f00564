"""Confusion counts: how often a device's model predicted each class for samples of each class.

The counts are made at the last evaluation, on the test samples. They are a table [C, C]: a row is the true
class, a column is the predicted class. No method declares the table, so its bytes are counted as `control`.
The table reveals how many samples of each class a device has, so the coordinator or the device may leave it out.
"""

from __future__ import annotations

from typing import Annotated, Final

from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.settings.bounds import Within

CONFUSION: Final = "confusion"
MOST_CLASSES: Final = 100  # A table of 100 classes takes 40 kB; a person cannot read a larger table.
LARGEST: Final = 2**31 - 1
ConfusionClasses = Annotated[int, Within(0, MOST_CLASSES)]


def confusion_wants(classes: int, most: int) -> dict[str, TensorSpec]:
    """Return the specification of the confusion counts, or nothing if the run has more than `most` classes."""
    if classes > most:
        return {}
    return {CONFUSION: TensorSpec((classes, classes), "int32", low=0, high=LARGEST, optional=True)}
