"""The newest events of a page, and the snapshot that is valid after the newest event.

The publisher puts a new snapshot in place of the old one, and changes neither snapshots nor events. So any number of
other threads can read both. The readers encode what they read, so a page that nobody looks at costs the publisher
almost nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, Protocol

EVENTS: Final = 1000  # Number of events that a reader can still get after it was away.
GAP: Final = "gap"  # Event that tells the page to read the snapshot, because events are missing.


class PageEvent:
    """An event with its number. The thread that reads the event encodes it, and only once for all readers."""

    def __init__(self, number: int, kind: str, data: Any) -> None:
        self.number, self._kind, self._data = number, kind, data

    @cached_property
    def encoded(self) -> bytes:
        data = json.dumps(self._data, allow_nan=False, separators=(",", ":"))
        return f"id: {self.number}\nevent: {self._kind}\ndata: {data}\n\n".encode()


class PageContent(Protocol):
    """The state of everything that the page shows. It never changes."""

    def table(self) -> Mapping[str, Any]:
        """Return the content as JSON can hold it; the thread that serves the page calls this method."""
        ...


class EventRing:
    """The newest events and the snapshot. Publishers take turns.

    The number of the first event is made from the time. So a number from an earlier process is never the number of
    an event of this process.
    """

    def __init__(
        self, snapshot: PageContent, most: int = EVENTS, clock: Callable[[], float] = time.time
    ) -> None:
        self._lock, self._events = threading.Lock(), deque[PageEvent](maxlen=most)
        self._state = (int(clock() * 1000), snapshot)
        self._added: Callable[[], None] | None = None

    @property
    def newest(self) -> int:
        return self._state[0]

    @property
    def state(self) -> tuple[int, PageContent]:
        """Return the number of the newest event, and the snapshot that includes this event."""
        return self._state

    @property
    def is_watched(self) -> bool:
        return self._added is not None

    def call_when_added(self, added: Callable[[], None] | None) -> None:
        """Call `added` in the publishing thread after each event; None means that nobody watches."""
        self._added = added

    def replace(self, snapshot: PageContent) -> None:
        """Replace the snapshot without an event."""
        with self._lock:
            self._state = (self._state[0], snapshot)

    def publish(self, kind: str, data: Any, snapshot: PageContent) -> None:
        """Add an event and replace the snapshot; `data` must not change after the call."""
        with self._lock:
            number = self._state[0] + 1
            self._events.append(PageEvent(number, kind, data))
            self._state = (number, snapshot)
        if (added := self._added) is not None:
            added()

    def since(self, number: int) -> list[PageEvent] | None:
        """Return the events after this number, or None if some of these events are not here."""
        with self._lock:
            missing = self._state[0] - number
            if missing < 0 or missing > len(self._events):
                return None
            return list(self._events)[len(self._events) - missing :]
