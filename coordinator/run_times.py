"""The times of a run: when it asks again for what is missing, and how its end is announced."""

from __future__ import annotations

from dataclasses import dataclass, field

from protofleet.coordinator.here_timer import AskTimer
from protofleet.coordinator.shutdown import Shutdown


@dataclass
class RunTimes:
    ask: AskTimer = field(default_factory=AskTimer)
    shutdown: Shutdown = field(default_factory=Shutdown)

    @property
    def wake_at(self) -> float:
        return min(self.ask.wake_at, self.shutdown.wake_at)

    def end(self, devices: set[str], now: float) -> None:
        """End the run; `devices` holds the devices from which a confirmation of the end is expected."""
        self.ask.wait_for_nobody()
        self.shutdown.begin(devices, now)
