"""The repetitions of a server step, each without one of its updates.

A broadcast may be unusable for devices because of one update that no limit refuses. When broken updates
have prevented the quorum of a round twice, the server step that made its broadcast is repeated without one
of its updates. If the round fails again, that update is used again and another one is left out, until the
round reaches its quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FAILURES: Final = 2  # failures of one round by broken updates, before a step is repeated


@dataclass
class Trials:
    # Round whose step was repeated -> devices whose updates were left out, one at a time. This survives a
    # restart.
    tried: dict[int, tuple[str, ...]] = field(default_factory=dict)
    failures: int = 0  # failures of the open round by broken updates, since the server half last went back

    def begin_round(self) -> None:
        self.failures = 0

    def resume(self, tried: Mapping[int, Iterable[str]]) -> None:
        self.tried = {number: tuple(devices) for number, devices in tried.items()}

    def are_under_way(self, number: int) -> bool:
        return number in self.tried

    def are_due(self, number: int) -> bool:
        """Return whether the step of that round must be repeated after another failure."""
        return number >= 1 and (self.are_under_way(number) or self.failures >= FAILURES)

    def attempts(self, number: int) -> int:
        """Return how often the round after that step has failed.

        This includes failures after the unchanged step and failures after the step without one update.
        """
        return self.failures + len(self.tried.get(number, ()))

    def left_out(self, number: int, aside: Collection[str]) -> tuple[str, ...]:
        """Return the devices whose updates are left out now."""
        return tuple(device for device in self.tried.get(number, ()) if device in aside)

    def leave_out(self, number: int, devices: tuple[str, ...]) -> None:
        self.tried[number] = (*self.tried.get(number, ()), *devices)
