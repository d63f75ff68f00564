"""Store the time at which each key is due, and find the earliest of these times."""

from __future__ import annotations

import heapq
import itertools
from typing import Final, Generic, TypeVar

K = TypeVar("K")
NEVER: Final = float("inf")


class Timers(Generic[K]):
    """A heap of times.

    If a key gets a later time, the heap is not changed at once. The key gets a new entry when its old time is
    reached.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._serial = itertools.count()
        self._due: dict[K, float] = {}
        self._entry: dict[K, float] = {}  # key -> time of its valid entry in the heap

    def set(self, who: K, at: float) -> None:
        """Set the time of a key, in place of its earlier time."""
        self._due[who] = at
        if at < self._entry.get(who, NEVER):
            self._entry[who] = at
            heapq.heappush(self._heap, (at, next(self._serial), who))

    def forget(self, who: K) -> None:
        self._due.pop(who, None)
        self._entry.pop(who, None)

    @property
    def next_at(self) -> float:
        """Return a time before which no key is due. Possibly no key is due at this time either."""
        return self._heap[0][0] if self._heap else NEVER

    def take_due(self, now: float) -> list[K]:
        found = []
        while self._heap and self._heap[0][0] <= now:
            at, _, who = heapq.heappop(self._heap)
            if at != self._entry.get(who):
                continue
            del self._entry[who]
            if (due := self._due[who]) <= now:
                del self._due[who]
                found.append(who)
            else:
                self.set(who, due)
        return found
