"""Write joules as text, and read joules from the lines of rounds.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

UNITS: Final = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"))
# "train" is the computation of updates. "send" is everything else, such as sending and waiting.
PHASES: Final = ("train", "send")


def human_joules(joules: float) -> str:
    for size, unit in UNITS:
        if joules >= 0.9995 * size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"


def by_device(line: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """Return the joules in a line of rounds.jsonl, by device and then by phase.

    A line of an earlier version has no joules, and the result is then empty.
    """
    found: Mapping[str, Mapping[str, float]] = line.get("energy", {})
    return found


def sums(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the sums of joules over several lines, by device and then by phase."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        for device, phases in by_device(line).items():
            own = found.setdefault(device, dict.fromkeys(PHASES, 0.0))
            for phase in PHASES:
                own[phase] += phases.get(phase, 0.0)
    return found


def joules_of(line: Mapping[str, Any]) -> float:
    """Return the sum of the joules of all devices."""
    return sum(sum(phases.values()) for phases in sums([line]).values())
