"""A simulated federation whose devices have boards, lines and times in which they are available."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from protofleet.edge_client.agent_parts import AgentOptions
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.trainer.job import Models, StartJob
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions, SimulatedBroker, VirtualWorker
from protofleet.lab.virtual.boards import BoardJob, BoardWorker, VirtualBoard
from protofleet.lab.virtual.fleet import VirtualDevice
from protofleet.lab.virtual.jobs import JobHost
from protofleet.lab.virtual.least_work import LeastWork, Sizes
from protofleet.lab.virtual.lines import LinedBroker, VirtualLine
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.transport.base import Item
from protofleet.runtime.host.machine import MACHINE_FOLLOWS, software_words


@dataclass
class VirtualFederation(Simulation):
    """A federation in virtual time. A device that is not available is off, and starts again from its files."""

    conditions: NetworkConditions = field(default_factory=lambda: NetworkConditions(delay=0.0))
    fleet: Mapping[str, VirtualDevice] = field(default_factory=dict)
    host: JobHost = field(kw_only=True)
    software: str = ""
    begins: float = 0.0  # Unix time at which the run begins.

    def __post_init__(self) -> None:
        self.wall = lambda: self.begins + self.clock.now
        # Reading the versions of the installed packages takes longer than all other work at the start of a device.
        self._software_words = software_words(self.software)
        self.gone: dict[str, float] = {}  # Devices that do not come back, with the time of their end.
        self.lines = {
            name: VirtualLine.of(device.line, random.Random(f"protofleet line {self.seed} {name}"))
            for name, device in self.fleet.items()
        }
        least = LeastWork()
        self.boards = {
            name: VirtualBoard(device, self.lines[name], sizes_of(self.shards[name]), least)
            for name, device in self.fleet.items()
        }
        super().__post_init__()

    def new_broker(self) -> SimulatedBroker:
        return LinedBroker(self.clock, self.conditions, self.seed, lines=self.lines)

    def boot_device(self, device: str) -> None:
        """Start a device if it is available now; otherwise start it when it is."""
        interval = self.fleet[device].availability.next(self.clock.now)
        if interval is None:
            self.gone[device] = self.clock.now
            return
        start, end = interval
        if start > self.clock.now:
            self.clock.call_at(start, lambda: self.boot_device(device))
            return
        super().boot_device(device)
        if end != float("inf"):
            self.clock.call_at(end, lambda: self._turn_off(device))

    def _turn_off(self, device: str) -> None:
        if device in self.broker.clients:
            if isinstance(worker := self.workers[device], BoardWorker):
                worker.cut_off()
            self.kill(device)
        self.boot_device(device)

    @property
    def lacks_quorum(self) -> bool:
        """Return whether so many devices are gone for good that no round can end any more."""
        left = len(self.fleet) - len(self.gone)
        waited = self.clock.now - max(self.gone.values(), default=self.clock.now)
        return left < self.policy.quorum and waited > self.policy.patience_seconds

    def new_worker(self, device: str, take: Callable[[Item], None]) -> VirtualWorker:
        return BoardWorker(self.clock, take, board=self.boards[device])

    def jobs_of(self, device: str, publish: Callable[[Plan], Models] | None) -> StartJob:
        return lambda plan: BoardJob(self.host, self.boards[device], device, plan)

    def options_of(self, device: str) -> AgentOptions:
        board = self.boards[device]
        return replace(
            super().options_of(device),
            software=self.software,
            about=f"{self._software_words}{MACHINE_FOLLOWS}{self.fleet[device].words}",
            clock=lambda: board.seconds,
            energy=board.meter(self.clock),
        )


def sizes_of(data: Splits) -> Sizes:
    return tuple(len(part.y) for part in (data.train, data.validation, data.test))
