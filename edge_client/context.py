"""The objects that all parts of a device's agent share, and the methods that end the device."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
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
class DeviceContext:
    """The objects and the state that all parts of one device process share; only the agent sets `now`."""

    link: DeviceLink
    state: DeviceState
    worker: Worker
    heard_file: HeardFile
    observers: list[DeviceObserver] = field(default_factory=list)
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

    def warn(self, message: str, *details: object) -> None:
        if self.log_limit.take(self.now):
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
        self.problem, self.finished = problem, True
