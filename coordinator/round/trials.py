"""The repetitions of a server step without one of its answers at a time.

A broadcast that devices cannot work with may stem from one answer that no limit refuses. When broken answers have
kept a round from its quorum twice, the step that made its broadcast is repeated without one of the answers. When the
round fails again, that answer returns and another one is left out, until the round reaches its quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FAILURES: Final = 2  # failures of one round by broken answers, before a step is repeated


@dataclass
class Trials:
    # Round whose step was repeated -> devices whose answers were left out, one at a time. It survives a
    # restart.
    tried: dict[int, tuple[str, ...]] = field(default_factory=dict)
    failures: int = 0  # failures of the open round by broken answers, since its server half was last put back

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

        The failures of the unchanged step and those without each of its answers count.
        """
        return self.failures + len(self.tried.get(number, ()))

    def left_out(self, number: int, aside: Collection[str]) -> tuple[str, ...]:
        """Return the devices whose answers are left out now."""
        return tuple(device for device in self.tried.get(number, ()) if device in aside)

    def leave_out(self, number: int, devices: tuple[str, ...]) -> None:
        self.tried[number] = (*self.tried.get(number, ()), *devices)
