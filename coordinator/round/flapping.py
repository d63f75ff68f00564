"""The detection of devices that lose their connection too often for the run to count on them.

Such devices still get tasks, but the run does not wait for them. A device becomes unsteady when it has lost
its connection `leaves` times within `seconds`. It becomes steady again after `seconds` without a lost
connection. The caller passes the current time as an argument. This state is not stored on the disk,
because a new coordinator soon finds the unsteady devices again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class FlapDetector:
    # A device that loses this many connections within `seconds` is unsteady; 0 means that every device is steady.
    leaves: int
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
