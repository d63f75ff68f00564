"""How often a device's model took one class for another, counted at the last evaluation on its test samples.

[C, C] numbers: a row is a class, a column what was predicted. No method declares them, so their bytes are counted as
`control`. They are a device's own class counts: either side may have them left out.
"""

from __future__ import annotations

from typing import Annotated, Final

from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.settings.bounds import Within

CONFUSION: Final = "confusion"
MOST_CLASSES: Final = 100  # 40 kB: of more, nobody reads a table
LARGEST: Final = 2**31 - 1
ConfusionClasses = Annotated[int, Within(0, MOST_CLASSES)]


def confusion_wants(classes: int, most: int) -> dict[str, TensorSpec]:
    """Nothing of runs of more classes than `most`."""
    if classes > most:
        return {}
    return {CONFUSION: TensorSpec((classes, classes), "int32", low=0, high=LARGEST, optional=True)}
