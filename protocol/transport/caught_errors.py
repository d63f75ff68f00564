"""Catch, count and log our own errors in code that a library calls.

An exception in such code would otherwise end the connection.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

# Seconds between two tracebacks for the same place in the code, so that repeated errors do not fill the log.
LOG_SECONDS: Final = 3600.0

P = ParamSpec("P")
log = logging.getLogger(__name__)


class CaughtErrors:
    """The errors that were caught: all are counted, and one error an hour is logged for each place in the code."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock, self._lock = clock, threading.Lock()
        # Place in the code -> time when its error was logged last, and the number of errors since then.
        self._logged: dict[str, tuple[float, int]] = {}

    def caught(self, where: str) -> None:
        """Count the exception that is being handled; log it if this place was not logged in the last hour."""
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
    """Wrap a method that paho calls. The wrapped method raises no exception."""

    @functools.wraps(call)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - it is logged there
            self.errors.caught(call.__name__)

    return guarded
