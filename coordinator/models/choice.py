"""The choice of the best point of a run by its validation accuracy; a point is one measurement of a model.

If the accuracy of each device is known, a later point is compared with the best point so far. For each device
that was measured at both points, the change of its accuracy is computed. The later point is better if the
median of these changes is above 0. For an even number of devices, the median is the mean of the two middle
values. If fewer than half of the devices send false values, the median still lies between the values of honest
devices. So one dishonest device of four cannot choose the best point.

If the accuracy of each device is not known (`policy.weight_cap = 0`, or lines of an earlier version), the
mean over domains decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Validation:
    """The validation accuracy of one point by domain, and also by device if it is known for each device."""

    domains: Values
    devices: Values = field(default_factory=dict)

    def is_better_than(self, best: Validation) -> bool:
        common = self.devices.keys() & best.devices.keys()
        if common:
            return statistics.median(self.devices[d] - best.devices[d] for d in common) > 0
        return statistics.fmean(self.domains.values()) > statistics.fmean(best.domains.values())


def best_point(points: Sequence[Validation]) -> int:
    """Return the index of the best point. If several points are equally good, the first of them is chosen."""
    best = 0
    for i, point in enumerate(points):
        if point.is_better_than(points[best]):
            best = i
    return best
