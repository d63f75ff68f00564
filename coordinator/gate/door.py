"""What the link asks before it fetches an answer: whether it is worth it. And what it says when one is broken."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Protocol

from protofleet.coordinator.gate.intake import Intake
from protofleet.coordinator.round.events import Answered, Command, Drop, Event, Stage
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.spool.older_copies import OlderCopyDetector
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Member
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.wire.messages import Update
from protofleet.protocol.wire.reasons import Problem, Reason, Rejected


class Desk(Protocol):
    """What the door asks, and whom it tells."""

    @property
    def machine(self) -> RoundMachine: ...

    @property
    def spool(self) -> Spool: ...

    @property
    def intake(self) -> Intake: ...

    @property
    def older_copies(self) -> OlderCopyDetector: ...

    @property
    def members(self) -> Mapping[str, Member]: ...

    @property
    def backlog(self) -> Sized: ...

    @property
    def now(self) -> float: ...

    def takes_part(self, device: str) -> bool: ...

    def perform(self, command: Command) -> None: ...

    def happen(self, event: Event, now: float) -> None: ...


class Door:
    def __init__(self, service: Desk) -> None:
        self._service = service

    def asks(self, update: Update) -> bool:
        """Whether it is to the open question, and no answer to that is in."""
        m, device = self._service.machine, update.device
        open_to_it = (update.round, update.phase, update.base) == (m.round, m.asked, m.base)
        return m.stage is Stage.COLLECTING and open_to_it and device in m.cohort and device not in m.answered

    def admit(self, update: Update, size: int, name: bytes) -> bool:
        service, device = self._service, update.device
        if self.asks(update):
            service.spool.check_claim()
            problem = service.intake.problem_with(update, size, service.members[device])
            if problem is None:
                if service.backlog:
                    raise NoRoom("what has come before waits to be written")
                service.intake.reserve(device, size)
                return True
            self.refuse(update, problem)
        elif service.intake.contradicts(update, name):
            other = Problem(Reason.EQUIVOCATION, "another answer to this question is in already")
            service.perform(Drop(device, update.round, update.phase, "refused", other))
        else:
            if service.takes_part(
                device
            ):  # else it may be of an earlier run, said by a device that has not looked
                service.older_copies.answered(device, update.round, service.now)
            self.judged(update, None)
        return False

    def spoiled(self, update: Update, fault: Rejected) -> None:
        self._service.spool.check_claim()
        self.refuse(update, Problem(fault.reason, str(fault)))

    def refuse(self, update: Update, problem: Problem) -> None:
        self._service.intake.refuse(update.device, problem)
        self.judged(update, problem)

    def judged(self, update: Update, problem: Problem | None) -> None:
        event = Answered(update.device, update.round, update.phase, update.base, problem)
        self._service.happen(event, self._service.now)
