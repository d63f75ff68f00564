"""Which devices come and go too often to be counted on: they stay in the fleet, and nobody waits for them.

With hysteresis: so many losses of the connection in a row make a device unsteady, and only as long a time without one
makes it steady again. Time is an argument; nothing of it survives a restart, as nothing depends on it for long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class FlapDetector:
    leaves: int  # within `seconds` make a device unsteady; 0: none ever is
    seconds: float
    _left: dict[str, deque[float]] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)

    def disconnected(self, device: str, now: float) -> None:
        if not self.leaves:
            return
        times = self._left.setdefault(device, deque(maxlen=self.leaves))
        times.append(now)
        often = len(times) == self.leaves and now - times[0] <= self.seconds
        if often or device in self.flapping(now):
            self._until[device] = now + self.seconds

    def flapping(self, now: float) -> set[str]:
        self._until = {device: until for device, until in self._until.items() if now < until}
        return set(self._until)
