"""The calls of the observers of a run, isolated from each other.

An error in one observer affects neither the run nor the other observers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.coordinator")

P = ParamSpec("P")


class Isolation:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._lines = now, TokenBucket(rate=1 / 60, burst=20.0)
        self.errors = 0

    def call(self, observer: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            observer(*args, **kwargs)
        # A full disk is a problem of the run, even if an observer is the first to notice it.
        except (RunMismatchError, *OURS):
            raise
        except Exception:
            self.errors += 1
            if self._lines.take(self._now()):
                log.exception("an observer of the run raised an error; the run goes on")
