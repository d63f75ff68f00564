"""The objects of a coordinator that its runs share. A coordinator has exactly one object of each kind.

One Python process can contain several coordinators. Each coordinator has its own objects.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.departures import Departures
from protofleet.coordinator.devices.error_boundary import ErrorBoundary
from protofleet.coordinator.devices.labels import DeviceLabels
from protofleet.coordinator.dispatcher import Dispatcher
from protofleet.coordinator.here_timer import HereTimer
from protofleet.coordinator.process_faults import is_of_the_process
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.wire.messages import State
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.event_loop import Worker
from protofleet.runtime.logs import lines_of_run


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
    # The groups and labels that operators have assigned to devices. They may change while runs go on.
    labels: Mapping[str, DeviceLabels] = field(default_factory=dict)
    # Called when a run is over, before its devices are told.
    on_run_end: Callable[[], None] = lambda: None
    # Number of hellos whose header has a higher epoch than this coordinator.
    higher_epochs: int = 0
    stopped: str = ""  # Reason why the process ends before its run is over, or "".
    # The error with which the process ends, if another process leads the federation.
    end: RunError | None = None
    # True if an error that concerns only one run does not end the process. Then `failed` holds the error.
    isolates_runs: bool = False
    failed: dict[str, Exception] = field(default_factory=dict)
    here_timer: HereTimer = field(default_factory=HereTimer)
    departures: Departures = field(default_factory=Departures)
    # The limit on the number of log lines about messages of peers. Without this limit, a flood of messages could
    # fill the disk. The counters still count every message.
    peer_log: TokenBucket = field(default_factory=lambda: TokenBucket(rate=1.0, burst=20.0))

    def __post_init__(self) -> None:
        self.error_boundary = ErrorBoundary(
            self.bans, self.clock, lambda name: self.link.rate_limiter.counted_as(name)
        )
        self.dispatcher = Dispatcher(self.clock, lambda device: self.link.last_heard(device)[0])

    @contextlib.contextmanager
    def around(self, run: str, errors: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
        """Catch an error of these kinds in the work for one run, if the other runs can go on after it.

        Each log line of this work names the run.
        """
        if not self.isolates_runs:
            yield
            return
        try:
            with lines_of_run(run):
                yield
        except errors as error:
            if is_of_the_process(error):
                raise
            self.failed.setdefault(run, error)

    def clock(self) -> float:
        return self.now

    @property
    def enrolled_devices(self) -> frozenset[str]:
        return frozenset(device for device in self.link.keyring if device != COORDINATOR)

    def announce(self, state: State) -> None:
        self.link.announce(state, retain=True)
