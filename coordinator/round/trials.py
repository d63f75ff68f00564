"""The trials, which repeat a server step without one of its updates.

One bad update within all limits can make the next broadcast unusable for all devices. Then all devices send broken
updates, and the round does not reach its quorum. If this happens twice, a trial repeats the server step that made
the broadcast, without one of its updates. If the round fails again, the next trial leaves out another update instead.
This goes on until the round reaches its quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FAILURES: Final = 2  # The first trial begins when broken updates have made one round fail this many times.


@dataclass
class Trials:
    # Round with a repeated server step -> devices whose updates were left out, one device in each repetition. The
    # spool stores this table.
    tried: dict[int, tuple[str, ...]] = field(default_factory=dict)
    # Number of times that the open round has failed because of broken updates. A new round, and a return to an
    # earlier round, set this number to 0.
    failures: int = 0

    def begin_round(self) -> None:
        self.failures = 0

    def resume(self, tried: Mapping[int, Iterable[str]]) -> None:
        self.tried = {number: tuple(devices) for number, devices in tried.items()}

    def are_under_way(self, number: int) -> bool:
        return number in self.tried

    def are_due(self, number: int) -> bool:
        """Return whether a trial must now repeat the server step of this round without one update."""
        return number >= 1 and (self.are_under_way(number) or self.failures >= FAILURES)

    def attempts(self, number: int) -> int:
        """Return how often the round after this server step has failed.

        The number includes the failures before the first trial and the failures in trials.
        """
        return self.failures + len(self.tried.get(number, ()))

    def left_out(self, number: int, aside: Collection[str]) -> tuple[str, ...]:
        """Return the devices whose updates the current trial leaves out."""
        return tuple(device for device in self.tried.get(number, ()) if device in aside)

    def leave_out(self, number: int, devices: tuple[str, ...]) -> None:
        self.tried[number] = (*self.tried.get(number, ()), *devices)
