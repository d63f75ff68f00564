"""The trials, which repeat a server step without one of its updates.

One update that no limit refuses can make a broadcast unusable for all devices. If broken updates have
prevented the quorum of a round twice, the server step that made the broadcast of this round is repeated
without one update. If the round fails again, that update is used again, and another update is left out. This
goes on until the round reaches its quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FAILURES: Final = 2  # The first trial begins when broken updates have made one round fail this many times.


@dataclass
class Trials:
    # Round whose server step was repeated -> devices whose updates were left out, one at a time. The spool stores
    # this table.
    tried: dict[int, tuple[str, ...]] = field(default_factory=dict)
    # How often broken updates have made the open round fail. The number is set to 0 when the server half goes back.
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
