"""Whoever wants to know what a coordinator does: ledger, metrics, progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from protofleet.coordinator.events import Command, Event
from protofleet.coordinator.index import RunMismatchError
from protofleet.coordinator.story import Step
from protofleet.protocol.admission import Bucket
from protofleet.protocol.faults import OURS
from protofleet.protocol.messages import Update

if TYPE_CHECKING:
    from protofleet.coordinator.service import Service


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


class Watcher(Protocol):
    """Told of everything after it is decided: ledger, metrics, progress. It influences nothing."""

    def happened(self, service: Service, event: Event, commands: Sequence[Command], now: float) -> None: ...

    def answered(self, service: Service, update: Update, now: float) -> None: ...

    def stepped(self, service: Service, step: Step, now: float) -> None: ...
