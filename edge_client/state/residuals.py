"""The residuals (rounding errors) after an update: one object of arrays for each phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Residuals:
    """The residuals after the update of a round and phase; round 0 stands for the time before the first update."""

    round: int = 0
    phase: str = ""
    # phase -> object in the store; "" if there are no rounding errors
    objects: dict[str, str] = field(default_factory=dict)


def objects_in(residuals: Iterable[Residuals]) -> set[str]:
    """Return the names of all objects of these residuals."""
    return {name for one in residuals for name in one.objects.values() if name}
