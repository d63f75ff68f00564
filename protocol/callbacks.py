"""How to live inside a library that calls back: nothing may escape, and its log is worth hearing."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")
log = logging.getLogger(__name__)


def never_raises(call: Callable[P, None]) -> Callable[P, None]:
    """For what runs inside paho, where an exception would cost the connection."""

    @functools.wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception:
            log.exception("%s failed", call.__name__)

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
