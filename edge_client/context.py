"""The objects that all parts of a device's agent share, and the methods that end the device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.heard import HeardFile
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.wire.messages import Bye, State
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.event_loop import Worker

log = logging.getLogger("protofleet.device")


class DeviceObserver(Protocol):
    def happened(self, what: str, **figures: float) -> None: ...


@dataclass
class DeviceStatus:
    """The state of one device process; only the agent sets `now`."""

    now: float = 0.0  # time of the event that is handled now
    connected: bool = False  # whether the device is connected to the broker
    coordinator_answered: bool = False  # whether the coordinator has answered this process
    finished: bool = False
    problem: str = ""  # reason why the device ended before the run ended; empty if there is no such reason
    # True if the problem is in the run's plan or in code of the run's author, so that a restart would not help.
    cannot_follow: bool = False
    # The limit of log lines that other machines can cause, so that other machines cannot fill the disk with log
    # lines. The metrics still count all events.
    log_limit: TokenBucket = field(default_factory=lambda: TokenBucket(rate=1.0, burst=20.0))


@dataclass
class DeviceContext:
    """The objects that all parts of a device share for one of its runs; `status` is the same for all runs."""

    link: DeviceLink
    state: DeviceState
    worker: Worker
    heard_file: HeardFile
    observers: list[DeviceObserver] = field(default_factory=list)
    status: DeviceStatus = field(default_factory=DeviceStatus)
    # Called with the reason if this run cannot go on. It returns True if the device goes on with other runs.
    leaves_run: Callable[[str], bool] = lambda problem: False

    def of_run(self, link: DeviceLink, state: DeviceState) -> DeviceContext:
        """Return the context of another run."""
        return replace(self, link=link, state=state, leaves_run=lambda problem: False)

    @property
    def now(self) -> float:
        return self.status.now

    @now.setter
    def now(self, now: float) -> None:
        self.status.now = now

    @property
    def connected(self) -> bool:
        """Return whether the device is connected to the broker."""
        return self.status.connected

    @connected.setter
    def connected(self, connected: bool) -> None:
        self.status.connected = connected

    @property
    def finished(self) -> bool:
        return self.status.finished

    @property
    def problem(self) -> str:
        """Return the reason why the device ended before the run ended; "" if there is no such reason."""
        return self.status.problem

    def warn(self, message: str, *details: object) -> None:
        if self.status.log_limit.take(self.now):
            log.warning(message, *details)

    def notify(self, what: str, **figures: float) -> None:
        for observer in self.observers:
            observer.happened(what, **figures)

    def keep_last_heard(self, durable: bool) -> None:
        self.heard_file.note_message(*self.link.last_heard(COORDINATOR), durable)

    def send_bye(self, reason: str) -> None:
        self.link.send(Bye(reason))
        self.link.publish(self.link.topics.device_state(self.link.me.name), State(False, reason), retain=True)

    def end(self, problem: str) -> None:
        self.keep_last_heard(durable=True)
        self.status.problem, self.status.finished = problem, True

    def end_run(self, problem: str) -> None:
        """End the work on this run because of a problem; if the device has no other run, end the device."""
        if not self.leaves_run(problem):
            self.end(problem)
