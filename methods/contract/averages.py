"""The phases of a method whose replies the server half uses only through a mean.

For these phases, the replies of all devices may be replaced by one reply with their mean: the server half then
reaches the same state. So rules against lying devices, secure aggregation and differential privacy need no code in
any method. A method declares such phases in `Method(averaged=...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from protofleet.protocol.wire.kinds import kind_in

# Weights of the devices in a mean: "examples" (numbers of samples), "devices" (each device once), "counts" (numbers
# of samples of one class), or "shares" (these numbers, divided by all samples of the device).
Weighing: TypeAlias = Literal["examples", "devices", "counts", "shares"]
BY: Final = ("examples", "devices")
ROWS_BY: Final = ("devices", "counts", "shares")
# The arrays of rows of classes: a row for each class that the device holds, its class, and its count of samples.
CLASS_ROWS: Final = ("prototypes", "labels", "counts")


@dataclass(frozen=True)
class Averaged:
    """The arrays of one phase that the server half uses only through a mean over the replies.

    Each array that the phase requests must be one of these arrays.
    """

    # Kinds of arrays whose means are computed number by number. All devices send them with the same names and shapes.
    # Arrays of whole numbers are not averaged: the array of the first device is used.
    arrays: tuple[str, ...] = ()
    by: Weighing = "examples"  # Weights of the devices in the mean of these arrays.
    # If set, the phase also requests the arrays CLASS_ROWS. The row of a class is the mean of the rows of the devices
    # that hold the class, with these weights.
    rows: Weighing | None = None
    # True if the phase requests only the prototypes, as a table with a row for each class. Its counts are those that
    # the devices state when they join (`Method.needs_counts`). A reply with the mean has all of CLASS_ROWS.
    table: bool = False
    least: int = 1  # Fewest samples of a class with which a device counts as a holder of its row in a table.
    # Optional arrays of the phase and arrays of the server half's state that concern single devices, and say nothing
    # about their samples. A mean has none of them, and the server half does without.
    single: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.arrays or self.rows):
            raise ValueError('it must have arrays or rows, for example Averaged(arrays=("weights",))')
        if not isinstance(self.arrays, tuple):
            raise TypeError(f'arrays is {self.arrays!r}, it must be a tuple of kinds such as ("weights",)')
        if self.by not in BY:
            raise ValueError(f"by is {self.by!r}, it must be one of {', '.join(BY)}")
        if self.rows is not None and self.rows not in ROWS_BY:
            raise ValueError(f"rows is {self.rows!r}, it must be None or one of {', '.join(ROWS_BY)}")
        if self.table and self.rows is None:
            raise ValueError("table is True, but rows is None; set rows to the weights of the table's rows")
        if both := sorted({*self.arrays}.intersection(CLASS_ROWS)) if self.rows else []:
            raise ValueError(f"{both[0]} is in arrays, but rows = {self.rows!r} already includes it")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of all arrays of the phase."""
        return (*self.arrays, *self.row_arrays)

    @property
    def row_arrays(self) -> tuple[str, ...]:
        """Return the arrays with the rows of classes that the phase requests."""
        if self.rows is None:
            return ()
        return CLASS_ROWS[:1] if self.table else CLASS_ROWS

    def uncovered(self, names: Iterable[str]) -> list[str]:
        """Return the names of requested arrays that are not averaged.

        If there is such an array, no mean can replace the replies of the phase.
        """
        kinds, whole = {*self.arrays}, {*self.row_arrays, *self.single}
        return sorted(name for name in names if name not in whole and kind_in(name) not in kinds)


def demand_averaged(averaged: Mapping[str, Averaged], arrays: Iterable[str] | None) -> None:
    """Raise TypeError or ValueError if a declaration of averaged phases is wrong.

    `arrays` are the kinds that the method declares; None means that it declares none.
    """
    if not isinstance(averaged, Mapping):
        raise TypeError(f'Method(averaged={averaged!r}): averaged must be a table {{"phase": Averaged(...)}}')
    known = None if arrays is None else {*arrays}
    for phase, one in averaged.items():
        if not (isinstance(phase, str) and phase and isinstance(one, Averaged)):
            raise TypeError(
                f"Method(averaged={{{phase!r}: {one!r}}}): it must be a phase and an Averaged(...)"
            )
        if missing := [] if known is None else [kind for kind in one.kinds if kind not in known]:
            raise ValueError(
                f"Method(averaged={{{phase!r}: ...}}): {missing[0]} is not in "
                f"arrays=({', '.join(sorted(known or ()))}); a method declares all arrays that it sends"
            )
