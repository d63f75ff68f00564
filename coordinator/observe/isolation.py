"""Calls to the observers of a run.

An error in one observer does not affect the run or the other observers.
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
        except (RunMismatchError, *OURS):  # a full disk is a problem of the run, also if an observer finds it
            raise
        except Exception:
            self.errors += 1
            if self._lines.take(self._now()):
                log.exception("an error in an observer of the run, which goes on")
