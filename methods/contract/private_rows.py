"""Put the rows of classes of an update into a table, so that the update can have noise.

The table has a row for every class. The row of a class that the device does not have is the row of the broadcast, so
its difference is 0. The labels and counts of all updates are equal, so only numbers that get noise depend on which
classes a device has, and on how many samples of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protofleet.methods.contract.averages import CLASS_ROWS, Averaged
from protofleet.methods.contract.contribution import arrays_of_payload, layout_of
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.messages import Array, Arrays

ROWS, LABELS, COUNTS = CLASS_ROWS


@dataclass(frozen=True)
class PrivateRows:
    """The rows of classes in the updates of one device."""

    averaged: Averaged  # the phase with the rows
    classes: int
    # Number of samples of each class on the device; only a phase with a table needs it.
    held: NDArray[np.int64]

    def tables(self, payload: Arrays, broadcast: Arrays) -> tuple[Arrays, Arrays]:
        """Return the tables [C, D] of the update and of the broadcast; a class without a row in it is 0 there."""
        own, has = self._own(payload)
        base = table_of_broadcast(self.averaged, own.shape, broadcast)
        dtype = payload[ROWS].dtype
        return {ROWS: np.where(has, own, base).astype(dtype)}, {ROWS: base.astype(dtype)}

    def _own(self, payload: Arrays) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the means [C, D] of the device's classes, and which classes the device has [C, 1]."""
        rows = {name: payload[name] for name in self.averaged.row_arrays}
        once = replace(self.averaged, arrays=(), rows="devices")
        layout = layout_of(once, arrays_of_payload(rows), self.classes)
        found = layout.vector(rows, {}, 1, 1, self.held).reshape(self.classes, -1)
        return found[:, :-1], found[:, -1:] > 0

    def other_arrays(self, payload: Arrays) -> Mapping[str, Array]:
        """Return the arrays outside the table, which are the same for each device, or say nothing about samples."""
        single = {name: payload[name] for name in self.averaged.single if name in payload}
        if self.averaged.table:
            return single
        return {**single, LABELS: np.arange(self.classes), COUNTS: np.ones(self.classes, np.int64)}


def table_of_broadcast(averaged: Averaged, shape: tuple[int, ...], broadcast: Arrays) -> NDArray[np.float64]:
    """Return the rows of a broadcast as a table [C, D]; a class without a row in it is 0."""
    table = np.zeros(shape)
    if ROWS in broadcast:
        labels = range(shape[0]) if averaged.table else np.asarray(broadcast[LABELS]).tolist()
        table[list(labels)] = np.asarray(broadcast[ROWS])
    return table


def rows_with_noise(plan: Plan) -> Averaged | None:
    """Return the phase of a run whose rows of classes have noise for each device, or None if there is none."""
    if plan.dp is None or plan.dp.unit != "device":
        return None
    return next((one for one in plan.variant.averaged.values() if one.rows), None)


def demand_rows_fit(plan: Plan, samples: int) -> None:
    """Raise SettingsError if the rows with noise would count as more samples than this device states."""
    rows = rows_with_noise(plan)
    if rows is not None and not rows.table and samples < plan.classes:
        raise SettingsError(
            f"dp is set, so a device sends a row for each of the {plan.classes} classes, which counts as one sample, "
            f"but this device has only {samples} samples; leave this device out of the run, or give it at least "
            f"{plan.classes} samples"
        )
