"""Send the new log lines of a run to the operators who follow it.

An operator follows a run for LEASE_SECONDS after each command `follow`. For each operator and run, only the number of
the newest line that was sent is kept. So an operator who is slow or gone costs no memory, and asks again after a gap.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from protofleet.coordinator.observe.line_handler import LineHandler
from protofleet.coordinator.page.page_state import short
from protofleet.protocol.wire.messages import MOST_NEWS, News

LEASE_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.25  # Least time between two messages with news for one operator about one run.
MOST_KEPT: Final = 1000  # Largest number of lines of all runs that are kept.
# Largest number of runs whose lines are counted. The lines of an older run are counted from 1 again.
MOST_RUNS: Final = 1000
MOST_FOLLOWED: Final = 4  # Largest number of runs that one operator follows at the same time.


def nothing() -> None:
    """Do nothing; a call on the thread of the event loop begins a turn of the loop."""


# Sends news to an operator; the arguments are the operator, the run and the news.
Tell = Callable[[str, str, News], None]


@dataclass(slots=True)
class Lease:
    """The time until which an operator follows a run, and the newest line that was sent."""

    until: float
    sent: int
    next_at: float = 0.0


@dataclass(frozen=True, slots=True)
class KeptLine:
    run: str
    number: int
    text: str


class RunNews:
    """The newest log lines, and the operators who follow a run."""

    def __init__(
        self, epoch: int, tell: Tell, state_of: Callable[[str], str], wake: Callable[[], None], only_run: str = "",
    ) -> None:  # fmt: skip
        """Set up the news of a coordinator.

        `state_of` returns the final state of a run, or "" while the run is not over. `wake` begins a turn of the
        event loop. `only_run` is the run of a coordinator that conducts only one, whose log lines name no run.
        """
        self._epoch, self._tell, self._state_of, self._wake = epoch, tell, state_of, wake
        self._only_run = only_run
        self._lock = threading.Lock()
        self._lines = deque[KeptLine](maxlen=MOST_KEPT)
        self._numbers: dict[str, int] = {}  # Run -> number of its newest line.
        self._leases: dict[tuple[str, str], Lease] = {}  # (operator, run) -> lease, the oldest first.
        self._is_awake = False

    @contextlib.contextmanager
    def taking_lines(self) -> Iterator[None]:
        """Take the log lines of this process while the `with` lasts."""
        log, handler = logging.getLogger("protofleet"), LineHandler(self.logged)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)

    def logged(self, at: float, level: str, text: str, run: str = "") -> None:
        """Keep a log line. Any thread may call this method."""
        name = run or self._only_run
        if not name:
            return
        with self._lock:
            number = self._numbers.pop(name, 0) + 1
            self._numbers[name] = number  # The runs are in the order of their newest lines.
            if len(self._numbers) > MOST_RUNS:
                del self._numbers[next(iter(self._numbers))]
            self._lines.append(KeptLine(name, number, short(text)))
            wakes = bool(self._leases) and not self._is_awake
            self._is_awake |= wakes
        if wakes:
            self._wake()

    # The following methods are for the thread of the event loop.

    def follow(self, operator: str, run: str, after: int | None, epoch: int, now: float) -> Mapping[str, Any]:
        """Let an operator follow a run; return the numbers of its lines, for the result of the command.

        The operator has the lines up to `after` of this epoch. None means that it wants only later lines.
        """
        with self._lock:
            newest = self._numbers.get(run, 0)
            oldest = next((line.number for line in self._lines if line.run == run), newest + 1)
        has = newest if after is None else min(after, newest) if epoch == self._epoch else 0
        before = self._leases.pop((operator, run), None)
        mine = [key for key in self._leases if key[0] == operator]
        if len(mine) >= MOST_FOLLOWED:
            del self._leases[mine[0]]
        self._leases[operator, run] = Lease(now + LEASE_SECONDS, has, before.next_at if before else now)
        return {"epoch": self._epoch, "line": newest, "oldest": oldest, "seconds": LEASE_SECONDS}

    @property
    def wake_at(self) -> float:
        """Return the time at which lines that wait may be sent."""
        return min(
            (
                lease.next_at
                for (_, run), lease in self._leases.items()
                if self._numbers.get(run, 0) > lease.sent
            ),
            default=float("inf"),
        )

    def end_turn(self, now: float) -> None:
        """Send the lines that are due."""
        self._is_awake = False
        for (operator, run), lease in list(self._leases.items()):
            if now >= lease.until:
                del self._leases[operator, run]
            elif now >= lease.next_at:
                self._send(operator, run, lease, now)

    def end(self, now: float) -> None:
        """Send all lines that wait, and the final state of each run that is over, because the process ends."""
        for (operator, run), lease in list(self._leases.items()):
            self._send(operator, run, lease, now)
            while (operator, run) in self._leases and self._numbers.get(run, 0) > lease.sent:
                self._send(operator, run, lease, now)

    def _send(self, operator: str, run: str, lease: Lease, now: float) -> None:
        with self._lock:
            newest = self._numbers.get(run, 0)
            waiting = [line for line in self._lines if line.run == run and line.number > lease.sent]
        some = waiting[:MOST_NEWS]
        last = some[-1].number if some else newest
        over = self._state_of(run) if last == newest else ""
        if some or over:
            first = some[0].number if some else newest + 1
            self._tell(operator, run, News(first, tuple(line.text for line in some), over))
            lease.sent, lease.next_at = last, now + PAUSE_SECONDS
        if over:
            del self._leases[operator, run]
