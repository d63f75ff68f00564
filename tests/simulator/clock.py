"""Virtual time: a heap of calls, and a hash over all calls in their order."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """A virtual clock: one seed has one history. `log` gets every event, if it is given."""

    def __init__(self, log: Callable[[str], None] | None = None) -> None:
        self.now, self.events = 0.0, 0
        self.log = log
        self.alarms: dict[int, Callable[[], None]] = {}  # Calls by the number of the event that they follow.
        self._queue: list[tuple[float, int, str, Callable[[], None]]] = []
        self._order = count()
        self._trace = hashlib.sha256()

    def at(self, when: float, what: str, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), what, call))

    def after(self, seconds: float, what: str, call: Callable[[], None]) -> None:
        self.at(self.now + seconds, what, call)

    def run(self, until: Callable[[], bool], limit: float) -> None:
        while self._queue and self._queue[0][0] <= limit and not until():
            self.now, _, what, call = heapq.heappop(self._queue)
            self.events += 1
            self.note(what)
            call()
            if self.events in self.alarms:
                self.alarms[self.events]()

    def note(self, what: str) -> None:
        """Add a line to the history; it must be the same in every run of the seed."""
        line = f"{self.now:.6f} {what}"
        self._trace.update(line.encode() + b"\n")
        if self.log:
            self.log(line)

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()[:16]
