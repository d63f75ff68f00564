"""What the coordinator process has once, and gives to its run: one process can hold several."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.departures import Departures
from protofleet.coordinator.devices.error_boundary import ErrorBoundary
from protofleet.coordinator.here_timer import HereTimer
from protofleet.coordinator.shutdown import Shutdown
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.wire.messages import State
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.event_loop import Worker


@dataclass
class ProcessContext:
    """`now`, `connected` and `stopped` are set by the service alone."""

    link: CoordinatorLink
    worker: Worker
    bans: Bans
    wall: Callable[[], float] = time.time  # Unix time, for policy.hours
    now: float = 0.0  # of the event that is handled
    connected: bool = False  # to the broker
    stopped: str = ""  # why the process ends before its run has
    here_timer: HereTimer = field(default_factory=HereTimer)
    shutdown: Shutdown = field(default_factory=Shutdown)
    departures: Departures = field(default_factory=Departures)
    # Lines about what peers say: a flood must not fill the disk with them; the counters have all of it.
    peer_log: TokenBucket = field(default_factory=lambda: TokenBucket(rate=1.0, burst=20.0))

    def __post_init__(self) -> None:
        self.error_boundary = ErrorBoundary(
            self.bans, self.clock, lambda name: self.link.rate_limiter.counted_as(name)
        )

    def clock(self) -> float:
        return self.now

    @property
    def enrolled_devices(self) -> frozenset[str]:
        return frozenset(device for device in self.link.keyring if device != COORDINATOR)

    @property
    def enrolled(self) -> int:
        return len(self.enrolled_devices)

    def announce(self, state: State) -> None:
        self.link.publish(self.link.topics.coord_state, state, retain=True)

    def announce_the_end(self, told: set[str]) -> None:
        """`told`: the devices that confirm it."""
        self.announce(State(False, "finished"))
        self.here_timer.stop()
        self.shutdown.begin(told, self.now)
