"""Whoever wants to know what a coordinator does: ledger, metrics, progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from coordinator.events import Command, Event
from coordinator.story import Step
from protocol.messages import Update

if TYPE_CHECKING:
    from coordinator.service import Service


class Watcher(Protocol):
    """Told of everything after it is decided: ledger, metrics, progress. It influences nothing."""

    def happened(self, service: Service, event: Event, commands: Sequence[Command], now: float) -> None: ...

    def answered(self, service: Service, update: Update, now: float) -> None: ...

    def stepped(self, service: Service, step: Step, now: float) -> None: ...
