"""Begin to act as the coordinator of a federation.

Before a process claims a folder, it looks whether another process leads. A process whose folder came back from a
backup may claim an epoch above one that an operator names, or that a device has proved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.leading.behind import BehindError
from protofleet.coordinator.leading.look import Blocked, Clear, Passed, Rank, Taken
from protofleet.coordinator.leading.standby import LookNeeds, Standby
from protofleet.coordinator.moving.place import MOVED
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.epochs import process_identity, save_epoch
from protofleet.coordinator.spool.lives import Life
from protofleet.protocol.link.clocks import Clock, ahead, days
from protofleet.protocol.link.standby import standby_address
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import StopRequest
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.runtime.broker_session import BrokerSession
from protofleet.runtime.command.errors import OutrankedError, RunError, SteppedDownError, ended_early
from protofleet.runtime.event_loop import end_on_signals

log = logging.getLogger("protofleet.coordinator")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The way in which a process begins to act as the coordinator."""

    take_over: bool = False  # True if it asks the coordinator that leads to end
    # True if no other coordinator can reach the broker, so that this process need not look.
    alone: bool = False
    # True if all runs of a queue are paused first, because the folder came back from a backup.
    pauses: bool = False


USUAL: Final = StartOptions()
T = TypeVar("T")


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
    match standby.look(_needs(patience, is_stopped), take_over=take_over).result:
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


def still_alone(
    standby: Standby | None, claimed: Rank, patience: float, is_stopped: Callable[[], bool], life: Life
) -> bool:
    """Look again, immediately before this process connects as the coordinator; the set-up has taken seconds.

    Return False if a signal has stopped this process. Raise OutrankedError if another coordinator leads now.
    """
    if standby is None:
        return True
    match standby.look(_needs(patience, is_stopped), claimed=claimed).result:
        case Taken(_, words):
            life.end(in_order=True)
            raise OutrankedError(words)
        case Passed(by):
            life.end(in_order=True)
            raise RunError(
                f"another coordinator has led with epoch {by.epoch} while this one prepared its start with epoch "
                f"{claimed.epoch}; start this one again, and it claims a higher epoch"
            )
        case Blocked(reason, is_lasting=False):
            raise RunError(reason)
        case None:
            return False
    return True  # A lasting reason not to ask was logged at the first look.


def _needs(patience: float, is_stopped: Callable[[], bool]) -> LookNeeds:
    """Return the needs of a look that ends if the broker accepts no connection for `patience` seconds."""
    session = BrokerSession(log)
    session.give_up_after(patience, time.monotonic())

    def lost(reason: str) -> None:
        session.lost(reason, False, time.monotonic())

    return LookNeeds(
        is_stopped,
        on_lost=lost,
        on_connected=session.accepted,
        check=lambda: session.check(time.monotonic()),
    )


def note_end(life: Life, service: CoordinatorService, is_stopped: Callable[[], bool]) -> None:
    """Record after the loop that the process has not crashed; raise the error if another coordinator has ended it."""
    end = service.end
    gave_way = service.stopped in ("", MOVED) or isinstance(end, SteppedDownError | BehindError)
    life.end(in_order=is_stopped() or gave_way)
    if isinstance(end, BehindError):
        end_on_signals()  # From now on, a signal ends the process at once.
        end.is_stopped = is_stopped()
    if end is not None:
        raise end


def claim_above(epoch: int, runs: Path, federation: str, clock: int) -> None:
    """Store an epoch that an operator has named, so that this coordinator and all later ones claim higher epochs."""
    if far := ahead(epoch, clock):
        raise SettingsError(
            f"--above is {epoch}, which is {days(far)} ahead of this clock; devices ignore an epoch that is more "
            "than a day ahead. Set the clock, or leave out --above: a device proves the epoch that it has heard"
        )
    save_epoch(runs, federation, epoch)


def claim_again(conduct: Callable[[bool], T], restored: bool, runs: Path, federation: str) -> T:
    """Call `conduct`; with --restored, call it again above each epoch that a device has proved.

    The argument of `conduct` is true at the first call with --restored: then the runs of a queue are paused. The
    proved epoch is on the disk before the next claim, so a process that is killed in between claims above it too.
    """
    first = restored
    while True:
        try:
            return conduct(first)
        except BehindError as behind:
            if not restored or behind.is_stopped:
                raise
            save_epoch(runs, federation, behind.proven)
            first = False
