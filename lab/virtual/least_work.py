"""The work that a task needs at least, so that the clock need not wait for its result at once.

The limit comes from work that has ended in virtual time. So it does not depend on the number of worker processes.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Sizes: TypeAlias = tuple[int, ...]  # The samples of a device for training, for validation and for the test.

SHARE: Final = 0.5  # A task needs at least this part of the work of the shortest earlier task.


class LeastWork:
    """The work of the shortest tasks so far, by phase and by the numbers of samples of the device."""

    def __init__(self) -> None:
        self._shortest: dict[str, dict[Sizes, float]] = {}

    def note(self, phase: str, sizes: Sizes, samples: float) -> None:
        """Note the work of a task that has ended."""
        known = self._shortest.setdefault(phase, {})
        known[sizes] = min(samples, known.get(sizes, samples))

    def samples(self, phase: str, sizes: Sizes) -> float:
        """Return half of the work of the shortest task of a device with as many samples, or with fewer.

        If several devices have fewer samples, the one with the most work counts. Without such a device, return 0.
        """
        known = self._shortest.get(phase, {})
        if (own := known.get(sizes)) is not None:
            return SHARE * own
        smaller = (
            work for other, work in known.items() if all(a <= b for a, b in zip(other, sizes, strict=True))
        )
        return SHARE * max(smaller, default=0.0)
