"""The content of the page of one process: its runs, its queue if it has one, and its log.

One ring holds the events of all runs, and each event names its run. Any thread may call these methods.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from protofleet.coordinator.page.page_state import MOST_LINES, PageState, Row, short
from protofleet.coordinator.page.queue_table import QueueTable
from protofleet.runtime.live.event_ring import GAP, EventRing

MOST_ENDED: Final = (
    4  # Largest number of runs that have ended and whose rounds are still shown when a run begins.
)


@dataclass(frozen=True, slots=True)
class ProcessState:
    verbs: tuple[str, ...]
    runs: Mapping[str, PageState]
    queue: QueueTable | None
    log: tuple[Row, ...]

    def table(self) -> dict[str, Any]:
        return {
            "verbs": self.verbs,
            "runs": [run.table() for run in self.runs.values()],
            "queue": self.queue.table() if self.queue else None,
            "log": self.log,
        }


class ProcessPage:
    def __init__(self, verbs: Iterable[str] = (), clock: Callable[[], float] = time.time) -> None:
        """Set up a page without a run; `verbs` are the commands that the page may send."""
        self._lock, self._lines = threading.Lock(), 0
        self._ended: list[str] = []  # Runs that have ended and are still shown, the oldest first.
        self._state = ProcessState(tuple(verbs), {}, None, ())
        self.ring = EventRing(self._state, clock=clock)

    def begin_run(self, state: PageState) -> None:
        """Show a run. The open pages read the whole state again."""
        name = state.name
        with self._lock:
            runs = {other: shown for other, shown in self._state.runs.items() if other != name}
            self._ended = [other for other in self._ended if other != name]
            while len(self._ended) > MOST_ENDED:
                del runs[self._ended.pop(0)]
            self._publish(GAP, {}, runs={**runs, name: state})

    def end_run(self, name: str) -> None:
        """Let a later run take the place of this run."""
        with self._lock:
            self._ended.append(name)

    def publish(self, kind: str, data: Mapping[str, Any], state: PageState) -> None:
        """Add an event of a run, and replace the state of the run; `data` must not change after the call."""
        with self._lock:
            self._publish(kind, {"run": state.name, **data}, runs={**self._state.runs, state.name: state})

    def replace(self, state: PageState) -> None:
        """Replace the state of a run without an event."""
        with self._lock:
            self._state = replace(self._state, runs={**self._state.runs, state.name: state})
            self.ring.replace(self._state)

    def show_queue(self, queue: QueueTable) -> None:
        """Show the queue, and publish the rows that have changed."""
        with self._lock:
            if queue != (before := self._state.queue):
                self._publish("queue", queue.since(before), queue=queue)

    def logged(self, at: float, level: str, text: str, run: str = "") -> None:
        """Add a log line; `run` is the run of the line, or "" if the line belongs to the process."""
        with self._lock:
            self._lines += 1
            row = {"run": run, "line": self._lines, "time": round(at, 1), "level": level, "text": short(text)}
            self._publish("log", row, log=(*self._state.log, row)[-MOST_LINES:])

    def _publish(self, kind: str, data: Any, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        self.ring.publish(kind, data, self._state)
