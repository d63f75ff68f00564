"""Calls to whoever watches a run: what goes wrong there costs the run nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.protocol.link.rate_limit import Bucket
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.coordinator")


class Aside:
    """Calls to those who only watch: an error in one costs nobody else anything."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._words = now, Bucket(rate=1 / 60, burst=20.0)
        self.errors = 0

    def call(self, what: Callable[[], None]) -> None:
        try:
            what()
        except (RunMismatchError, *OURS):  # a full disk is no less full for being met here
            raise
        except Exception:
            self.errors += 1
            if self._words.take(self._now()):
                log.exception("an error in what watches the run, which goes on")
