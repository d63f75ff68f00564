"""What may be seen of a run by whoever watches it, and what watchers are told once it is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from protofleet.coordinator.command_queue import Backlog
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.departures import Departures
from protofleet.coordinator.devices.error_boundary import ErrorBoundary
from protofleet.coordinator.devices.last_wills import LastWills
from protofleet.coordinator.devices.limits import Limits
from protofleet.coordinator.observe.aside import Aside
from protofleet.coordinator.round.events import Command, Event
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.server.runner import ServerRunner, Step
from protofleet.coordinator.spool.older_copies import OlderCopyDetector
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.wire.messages import Update


class RunView(Protocol):
    @property
    def plan(self) -> Plan: ...

    @property
    def machine(self) -> RoundMachine: ...

    @property
    def spool(self) -> Spool: ...

    @property
    def link(self) -> CoordinatorLink: ...

    @property
    def server_runner(self) -> ServerRunner: ...

    @property
    def members(self) -> Mapping[str, Member]: ...

    @property
    def domains(self) -> Mapping[str, str]: ...

    @property
    def measures(self) -> AbstractSet[str]: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def now(self) -> float: ...

    @property
    def stopped(self) -> str: ...

    @property
    def diverged(self) -> str: ...

    @property
    def aside(self) -> Aside: ...

    @property
    def error_boundary(self) -> ErrorBoundary: ...

    @property
    def bans(self) -> Bans: ...

    @property
    def last_wills(self) -> LastWills: ...

    @property
    def older_copies(self) -> OlderCopyDetector: ...

    @property
    def departures(self) -> Departures: ...

    @property
    def backlog(self) -> Backlog: ...


class Watcher(Protocol):
    """Told of everything after it is decided: ledger, metrics, progress. It influences nothing."""

    def happened(self, run: RunView, event: Event, commands: Sequence[Command], now: float) -> None: ...

    def answered(self, run: RunView, update: Update, now: float) -> None: ...

    def stepped(self, run: RunView, step: Step, now: float) -> None: ...
