"""How to live inside a library that calls back: nothing may escape, and its log is worth hearing."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

SAY_SECONDS: Final = (
    3600.0  # between tracebacks of one place: whoever brings them about must not fill the log
)

P = ParamSpec("P")
log = logging.getLogger(__name__)


class Failures:
    """Errors of ours that were kept from the library: all are counted, one of each place is said an hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock, self._lock = clock, threading.Lock()
        self._said: dict[
            str, tuple[float, int]
        ] = {}  # when a place was said last, and how often it was not since

    def caught(self, where: str) -> None:
        """The exception that is being handled."""
        now = self._clock()
        with self._lock:
            self.count += 1
            at, unsaid = self._said.get(where, (float("-inf"), 0))
            says = now >= at + SAY_SECONDS
            self._said[where] = (now, 0) if says else (at, unsaid + 1)
        if says:
            log.exception(
                "%s failed%s", where, f", {unsaid} times more since this was last said" if unsaid else ""
            )


class Guarded(Protocol):
    failures: Failures


S = TypeVar("S", bound=Guarded)


def never_raises(call: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """For what runs inside paho, where an exception would cost the connection."""

    @functools.wraps(call)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - it is said there
            self.failures.caught(call.__name__)

    return guarded


class HeardErrors(logging.Handler):
    """paho keeps a socket's error to itself but logs it; under TLS nothing else says what is wrong."""

    last: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = [arg for arg in record.args or () if isinstance(arg, OSError)]
        self.last = found[0] if found else self.last

    def logger(self) -> logging.Logger:
        """One that only this handler hears, outside the tree of loggers."""
        logger = logging.Logger("paho", logging.ERROR)
        logger.addHandler(self)
        return logger
