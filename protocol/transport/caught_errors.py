"""Errors of ours in code that a library calls, where an exception would cost the connection: counted and logged."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

# Between tracebacks of one place: whoever brings them about must not fill the log.
LOG_SECONDS: Final = 3600.0

P = ParamSpec("P")
log = logging.getLogger(__name__)


class CaughtErrors:
    """All are counted; of each place one is logged an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock, self._lock = clock, threading.Lock()
        # By place: when it was logged last, and how often not since.
        self._logged: dict[str, tuple[float, int]] = {}

    def caught(self, where: str) -> None:
        """The exception that is being handled."""
        now = self._clock()
        with self._lock:
            self.count += 1
            at, unlogged = self._logged.get(where, (float("-inf"), 0))
            due = now >= at + LOG_SECONDS
            self._logged[where] = (now, 0) if due else (at, unlogged + 1)
        if due:
            more = f", {unlogged} times more since this was last said" if unlogged else ""
            log.exception("%s failed%s", where, more)


class CountsErrors(Protocol):
    errors: CaughtErrors


S = TypeVar("S", bound=CountsErrors)


def never_raises(call: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """For methods that paho calls."""

    @functools.wraps(call)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - it is logged there
            self.errors.caught(call.__name__)

    return guarded
