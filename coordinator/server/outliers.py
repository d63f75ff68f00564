"""The outliers: updates whose arrays are far larger than those of the other updates of their cohort.

Outliers are put aside before the server half uses them. An update may be finite and within every limit, and
still be a thousand times larger than all others. The check reads the updates from the disk, so a replay gives
the same result.

If an array consists of rows (prototypes, features), its size is the norm of its longest row, because the
number of rows differs between devices. The size of any other array is its Euclidean norm. Labels, counts and
control arrays are not judged. An array that fewer than three updates contain is not judged either.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from protofleet.coordinator.spool.spool import Accepted
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.contract.wants import SLICE
from protofleet.protocol.wire.arrays import kind_of

Sizes = Mapping[str, float]  # Array -> its norm, or the norm of its longest row.
UNJUDGED = frozenset({"labels", "counts", "control"})
# Arrays that consist of rows. The number of rows depends on the classes or samples of a device.
ROWS = frozenset({"prototypes", "features", "anchors"})
LEAST = 3  # Smallest number of updates for which a median is used.


@dataclass(frozen=True, slots=True)
class Outlier:
    device: str
    array: str
    size: float
    median: float

    @property
    def ratio(self) -> float:
        return self.size / self.median

    @property
    def words(self) -> str:
        return f"{self.array} has a norm of {self.size:.3g}, the cohort's median is {self.median:.3g}"


def sizes_of(answer: LazyPayload) -> Sizes:
    """Return the size of each array of an update; only one slice of one array is in memory at a time."""
    found = {}
    for name in answer:
        dtype, shape = answer.dtype_and_shape(name)
        if dtype.startswith("float") and kind_of(name) not in UNJUDGED and 0 not in shape:
            found[name] = _size(answer, name, shape)
    return found


def sizes_by_device(
    answers: Mapping[str, Accepted], arrays: Callable[[Accepted], LazyPayload]
) -> dict[str, Sizes]:
    return {device: sizes_of(arrays(answer)) for device, answer in sorted(answers.items())}


def outliers(cohort: Mapping[str, Sizes], limit: float) -> dict[str, Outlier]:
    """Return the updates with an array whose size is above `limit` times the median size of this array.

    If at least half of all updates are above the limit, only the updates with the largest ratios are returned.
    """
    found: dict[str, Outlier] = {}
    for one in _compared(cohort):
        if one.size > limit * one.median and (one.device not in found or one.ratio > found[one.device].ratio):
            found[one.device] = one
    worst = sorted(found.values(), key=lambda one: (-one.ratio, one.device))
    return {one.device: one for one in worst[: (len(cohort) - 1) // 2]}


def farthest(cohort: Mapping[str, Sizes]) -> dict[str, Outlier]:
    """Return for each device its array with the largest ratio to the median of the cohort.

    Arrays that too few devices have sent are not compared.
    """
    found: dict[str, Outlier] = {}
    for one in _compared(cohort):
        if one.device not in found or one.ratio > found[one.device].ratio:
            found[one.device] = one
    return found


def worst(cohort: Mapping[str, Sizes]) -> Outlier | None:
    """Return the outlier with the largest ratio of size to median; None if no array can be compared."""
    return min(farthest(cohort).values(), key=lambda one: (-one.ratio, one.device), default=None)


def _compared(cohort: Mapping[str, Sizes]) -> list[Outlier]:
    found = []
    for name in sorted({name for sizes in cohort.values() for name in sizes}):
        known = {device: sizes[name] for device, sizes in sorted(cohort.items()) if name in sizes}
        median = statistics.median(known.values())
        if len(known) >= LEAST and median > 0:
            found += [Outlier(device, name, size, median) for device, size in known.items()]
    return found


def _size(answer: LazyPayload, name: str, shape: tuple[int, ...]) -> float:
    whole = math.prod(shape)
    row = whole // shape[0] if shape else 1
    if kind_of(name) in ROWS and row <= SLICE:
        parts = _parts(answer, name, SLICE // row * row)
        return math.sqrt(max(float(part.reshape(-1, row).pow(2).sum(1).max()) for part in parts))
    return math.sqrt(sum(float(part.pow(2).sum()) for part in _parts(answer, name, SLICE)))


def _parts(answer: LazyPayload, name: str, step: int) -> Iterator[torch.Tensor]:
    whole = math.prod(answer.dtype_and_shape(name)[1])
    for start in range(0, whole, step):
        report_progress()
        yield answer.flat(name, start, min(start + step, whole)).double()
