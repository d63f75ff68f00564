"""Look, before a process claims a folder, whether another process is the coordinator of the federation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.leading.look import Blocked, Clear, Taken
from protofleet.coordinator.leading.standby import LookNeeds, Standby
from protofleet.coordinator.spool.epochs import process_identity
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.standby import standby_address
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.base import StopRequest
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.runtime.broker_session import BrokerSession
from protofleet.runtime.command.errors import OutrankedError, RunError, ended_early

log = logging.getLogger("protofleet.coordinator")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The way in which a process begins to act as the coordinator."""

    take_over: bool = False  # True if it asks the coordinator that leads to end
    alone: bool = (
        False  # True if no other coordinator can reach the broker, so that this process need not look
    )


USUAL: Final = StartOptions()


def standby_of(settings: CoordinatorSettings, keys: Keys, folder: Path) -> Standby | None:
    """Return the standby of this process; None if the federation has no standby, which is logged."""
    address = standby_address(settings.broker)
    if address is None:
        log.warning(
            "this coordinator cannot ask whether another one leads, because it has no certificate of a standby; "
            "renew its enrolment with `protofleet enrol renew` and `protofleet enrol install`"
        )
        return None
    clock = Clock(since=keys.not_before)
    return Standby(
        settings.federation, keys, address, process_identity(folder), lambda epoch: clock.ahead(epoch) > 0
    )


def highest_of_others(
    standby: Standby | None, patience: float, receive_queue: ReceiveQueue, is_stopped: Callable[[], bool],
    take_over: bool = False,
) -> int:  # fmt: skip
    """Return the highest epoch that the broker knows; 0 without a standby.

    Raise OutrankedError if another coordinator leads, and SignalledError if a signal has stopped this process.
    """
    if standby is None:
        return 0
    session = BrokerSession(log)
    session.give_up_after(patience, time.monotonic())

    def lost(reason: str) -> None:
        session.lost(reason, False, time.monotonic())

    needs = LookNeeds(
        is_stopped,
        on_lost=lost,
        on_connected=session.accepted,
        check=lambda: session.check(time.monotonic()),
    )
    match standby.look(needs, take_over=take_over).result:
        case Clear(highest):
            return highest
        case Taken(_, words):
            raise OutrankedError(words)
        case Blocked(reason, is_lasting):
            if not is_lasting:
                raise RunError(reason)
            log.warning("this coordinator cannot ask whether another one leads: %s", reason)
        case None:
            # Nothing else is put into the queue before this process has connected as the coordinator.
            asked = receive_queue.get()
            raise ended_early(asked.reason if isinstance(asked, StopRequest) else "stopped")
    return 0
