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

# Weights of the devices in a mean: "examples" (numbers of samples), "devices" (each device once), or "counts"
# (numbers of samples of one class).
Weighing: TypeAlias = Literal["examples", "devices", "counts"]
BY: Final = ("examples", "devices")
ROWS_BY: Final = ("devices", "counts")
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

    def __post_init__(self) -> None:
        if not (self.arrays or self.rows):
            raise ValueError('it must have arrays or rows, for example Averaged(arrays=("weights",))')
        if not isinstance(self.arrays, tuple):
            raise TypeError(f'arrays is {self.arrays!r}, it must be a tuple of kinds such as ("weights",)')
        if self.by not in BY:
            raise ValueError(f"by is {self.by!r}, it must be one of {', '.join(BY)}")
        if self.rows is not None and self.rows not in ROWS_BY:
            raise ValueError(f"rows is {self.rows!r}, it must be None or one of {', '.join(ROWS_BY)}")
        if both := sorted({*self.arrays}.intersection(CLASS_ROWS)) if self.rows else []:
            raise ValueError(f"{both[0]} is in arrays, but rows = {self.rows!r} already includes it")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of all arrays of the phase."""
        return (*self.arrays, *(CLASS_ROWS if self.rows else ()))

    def uncovered(self, names: Iterable[str]) -> list[str]:
        """Return the names of requested arrays that are not averaged.

        If there is such an array, no mean can replace the replies of the phase.
        """
        known = {*self.arrays}
        rows = {*CLASS_ROWS} if self.rows else set[str]()
        return sorted(name for name in names if name not in rows and kind_in(name) not in known)


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
