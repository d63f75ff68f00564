"""The objects of a coordinator that its run uses. A coordinator has exactly one object of each kind.

One Python process can contain several coordinators. Each coordinator has its own objects.
"""

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
    """The objects of a process. Only the service sets `now`, `connected` and `stopped`."""

    link: CoordinatorLink
    worker: Worker
    bans: Bans
    # Function that returns the Unix time. The setting policy.hours needs this time.
    wall: Callable[[], float] = time.time
    now: float = 0.0  # Time of the event that is being handled, on the clock of the event loop.
    connected: bool = False  # True while there is a session with the broker
    stopped: str = ""  # Reason why the process ends before its run is over, or "".
    here_timer: HereTimer = field(default_factory=HereTimer)
    shutdown: Shutdown = field(default_factory=Shutdown)
    departures: Departures = field(default_factory=Departures)
    # The limit on the number of log lines about messages of peers. Without this limit, a flood of messages could
    # fill the disk. The counters still count every message.
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
        """Announce that the run is over; `told` holds the devices from which a confirmation is expected."""
        self.announce(State(False, "finished"))
        self.here_timer.stop()
        self.shutdown.begin(told, self.now)
