"""The contribution of a device to an averaged phase, as one vector whose sum over the devices gives their mean.

An array that is averaged element by element is in the vector as w (value - value in the broadcast), where w is the
weight of the device. Rows of classes are in the vector as a table: (mean, 1) for each class that the device holds, or
(w mean, w) if the devices count by their samples of the class, or by the share of these samples in all samples of the
device; the table has zeros for an absent class.

The weights are at most 1. `most` is the largest number of examples with which a device counts, so a device with n
examples has the weight min(n, most) / most. The number is the same for all devices of the phase, so nobody can choose
weights that bring out one device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.methods.contract.averages import CLASS_ROWS, Averaged
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.wire.kinds import kind_in
from protofleet.protocol.wire.messages import Array, Arrays

ROWS, LABELS, COUNTS = CLASS_ROWS
# Whole numbers, such as the number of batches of a batch norm, grow by more than weights do in a round.
WHOLE = 2.0**-10

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class VectorPlace:
    """The place of an array in the vector."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    @property
    def scale(self) -> float:
        return 1.0 if self.dtype.startswith("float") else WHOLE


@dataclass(frozen=True)
class VectorLayout:
    """The places of a phase's arrays in the vector: first the arrays, by name, then the table of classes."""

    averaged: Averaged
    places: tuple[VectorPlace, ...]
    classes: int = 0  # number of classes of the table; 0 without a table
    width: int = 0  # numbers in a row of the table
    dtype: str = "float32"  # dtype of the rows

    @property
    def table(self) -> int:
        """Return the place of the first number of the table."""
        return self.places[-1].stop if self.places else 0

    @property
    def length(self) -> int:
        return self.table + self.classes * (self.width + 1)

    def vector(
        self, payload: Arrays, broadcast: Arrays, examples: int, most: int, counts: Counts | None = None
    ) -> Vector:
        """Return the contribution of a device with this number of examples; raise ValueError for wrong arrays.

        `counts` has the device's number of samples of each class; only the layout of a table needs it.
        """
        found = np.zeros(self.length)
        weight = self._weight(examples, most)
        for place in self.places:
            value = _of_shape(payload, place.name, place.shape).astype(np.float64)
            if place.name in broadcast:
                value = value - _of_shape(broadcast, place.name, place.shape).astype(np.float64)
            found[place.start : place.stop] = (weight * place.scale * value).reshape(-1)
        if self.classes:
            found[self.table :] = self._rows(payload, most, counts).reshape(-1)
        return found

    def _weight(self, examples: int, most: int) -> float:
        return 1.0 if self.averaged.by == "devices" else weight_of(examples, most)

    def _rows(self, payload: Arrays, most: int, stated: Counts | None) -> Vector:
        """Return the table [C, D + 1] of a device."""
        labels, counts = self._counted(payload, stated)
        rows = _of_shape(payload, ROWS, (len(labels), self.width)).astype(np.float64)
        if len(counts) != len(labels) or (labels < 0).any() or (labels >= self.classes).any():
            raise ValueError(
                f"{len(labels)} labels and {len(counts)} counts make no rows of {self.classes} classes"
            )
        table = np.zeros((self.classes, self.width + 1))
        np.add.at(table[:, :-1], labels, counts[:, None] * rows)
        np.add.at(table[:, -1], labels, counts)
        held = table[:, -1:]
        means = np.divide(table[:, :-1], held, out=np.zeros_like(table[:, :-1]), where=held > 0)
        if self.averaged.rows == "devices":
            return np.hstack([means, (held > 0).astype(np.float64)])
        counted = capped(held, most)
        share = counted / (most if self.averaged.rows == "counts" else max(counted.sum(), 1.0))
        return np.hstack([share * means, share])

    def _counted(self, payload: Arrays, stated: Counts | None) -> tuple[Counts, Counts]:
        """Return the classes of the payload's rows, and the number of samples behind each row."""
        if not self.averaged.table:
            labels, counts = (np.asarray(payload[name]).astype(np.int64) for name in (LABELS, COUNTS))
            return labels, counts
        if stated is None or len(stated) != self.classes:
            raise ValueError(f"a table of {self.classes} classes needs the number of samples of each class")
        return np.arange(self.classes), stated

    def present(self, payload: Arrays, counts: Counts | None = None) -> NDArray[np.bool_]:
        """Return for each class whether the device has a row of the class; `counts` as in `vector`."""
        found = np.zeros(self.classes, np.bool_)
        if self.classes:
            labels, numbers = self._counted(payload, counts)
            found[labels] = numbers >= self.averaged.least if self.averaged.table else True
        return found

    def places_of(self, classes: Iterable[int]) -> NDArray[np.int64]:
        """Return the places of all numbers of the rows of these classes."""
        each = np.arange(self.width + 1)
        starts = [self.table + label * (self.width + 1) for label in classes]
        return np.array([start + each for start in starts], np.int64).reshape(-1)

    def mean(
        self, total: Vector, broadcast: Arrays, examples: Iterable[int], most: int,
        wants: Mapping[str, TensorSpec],
    ) -> dict[str, Array]:  # fmt: skip
        """Return the arrays of one reply that holds the mean, from the sum of the vectors of the devices.

        `examples` has the number of examples of each device in the sum.
        """
        weight = sum(self._weight(one, most) for one in examples)
        found: dict[str, Array] = {}
        for place in self.places:
            value = total[place.start : place.stop].reshape(place.shape) / (weight * place.scale)
            if place.name in broadcast:
                value = value + np.asarray(broadcast[place.name]).astype(np.float64)
            found[place.name] = _within(value, wants[place.name]).astype(place.dtype)
        return found | (self._mean_rows(total, most) if self.classes else {})

    def _mean_rows(self, total: Vector, most: int) -> dict[str, Array]:
        table = total[self.table :].reshape(self.classes, self.width + 1)
        if self.averaged.rows == "shares":
            held = table[:, -1] > 0
            # The sum has no number of samples, and the server half only reads which classes have any.
            return self._reply_rows(table[held, :-1] / table[held, -1:], held, np.ones(held.sum(), np.int64))
        unit = 1.0 if self.averaged.rows == "devices" else 1.0 / most
        counts = np.rint(table[:, -1] / unit).astype(
            np.int64
        )  # exact: the rounding of the sum is far below a half
        held = counts > 0
        means = table[held, :-1] / (counts[held, None] * unit)
        return self._reply_rows(means, held, counts[held])

    def _reply_rows(self, means: Vector, held: NDArray[np.bool_], counts: Counts) -> dict[str, Array]:
        return {ROWS: means.astype(self.dtype), LABELS: np.flatnonzero(held), COUNTS: counts}


def weight_of(examples: int, most: int) -> float:
    """Return the weight of a device with this number of examples."""
    return min(examples, most) / most


def capped(counts: Vector, most: int) -> Vector:
    """Scale the counts of a device's samples down, so that they add up to about `most`; a class keeps at least 1."""
    if (total := counts.sum()) <= most:
        return counts
    return np.where(counts > 0, np.maximum(np.floor(counts * (most / total)), 1), 0)


def layout_of(
    averaged: Averaged, arrays: Mapping[str, tuple[str, tuple[int | str, ...]]], classes: int
) -> VectorLayout:
    """Return the layout of arrays with these dtypes and shapes; raise ValueError if the phase's mean lacks one.

    The coordinator knows the arrays from the `wants` of the task, and a device from its payload. In both cases, the
    number of rows may be free.
    """
    places: list[VectorPlace] = []
    start, width, dtype = 0, 0, "float32"
    for name in sorted(arrays):
        kind_dtype, shape = arrays[name]
        if kind_in(name) in averaged.arrays:
            places.append(VectorPlace(name, kind_dtype, tuple(int(n) for n in shape), start))
            start = places[-1].stop
        elif averaged.rows is not None and name == ROWS:
            width, dtype = int(shape[1]), kind_dtype
        elif name not in (*averaged.row_arrays, *averaged.single):
            raise ValueError(f"{name} is not averaged in this phase, so a sum cannot replace it")
    return VectorLayout(averaged, tuple(places), classes if width else 0, width, dtype)


def arrays_of_wants(wants: Mapping[str, TensorSpec]) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    return {name: (spec.dtype, spec.shape) for name, spec in wants.items()}


def arrays_of_payload(payload: Arrays) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    return {name: (payload[name].dtype.name, payload[name].shape) for name in payload}


def _of_shape(arrays: Arrays, name: str, shape: tuple[int, ...]) -> Array:
    if name not in arrays:
        raise ValueError(f"no {name}")
    value = np.asarray(arrays[name])
    if value.shape != shape:
        raise ValueError(f"{name} is {value.shape}, not {shape}")
    return value


def _within(value: Vector, spec: TensorSpec) -> Vector:
    """Return the value in its bounds, which rounding can pass, and as whole numbers if the array has whole numbers.

    So a running variance is never negative.
    """
    rounded = value if spec.is_float else np.rint(value)
    return np.clip(rounded, spec.low, spec.high) if (spec.low, spec.high) != (None, None) else rounded


def apart_of(averaged: Averaged, strict: bool, holders: int) -> int:
    """Return by how many devices the cohorts of two sums must differ, if they are not equal; 0 means no limit.

    Rows of classes change little from round to round, so the difference of two sums shows single devices. The
    difference of weights does not.
    """
    return holders if averaged.rows and strict else 0
