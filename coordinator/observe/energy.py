"""The energy of a round by device in joules, from the metrics of updates.

Each update states the energy since the previous update of its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protofleet.coordinator.observe.measured import JOULES
from protofleet.coordinator.observe.record import ByDevice

Energy = dict[str, float]  # "train" or "send" -> joules.


class RoundEnergy:
    """The energy of one round.

    A replay repeats the updates of a round, so only the last update of a device in each phase is used.
    """

    def __init__(self) -> None:
        self._said: dict[str, dict[str, Energy]] = {}  # Device -> phase of the round -> joules.

    def note(self, device: str, phase: str, metrics: Mapping[str, float]) -> None:
        if said := {what: metrics[name] for what, name in JOULES.items() if name in metrics}:
            self._said.setdefault(device, {})[phase] = said

    def by_device(self) -> ByDevice:
        return {device: total(phases.values()) for device, phases in sorted(self._said.items())}


def total(parts: Iterable[Mapping[str, float]]) -> Energy:
    """Return the sum of the energies, rounded to the precision of a sensor."""
    found: Energy = {}
    for part in parts:
        for what, joules in part.items():
            found[what] = found.get(what, 0.0) + joules
    return {what: round(joules, 6) for what, joules in found.items()}


def total_energy(lines: Sequence[Mapping[str, Any]]) -> Energy:
    """Return the energy of all devices in all rounds; empty if no device measured its energy."""
    return total(one for line in lines for one in line.get("energy", {}).values())
