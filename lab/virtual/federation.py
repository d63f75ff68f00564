"""A simulated federation whose devices have boards, lines and times in which they are available."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from protofleet.edge_client.agent_parts import AgentOptions
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.public_images import public_images
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.trainer.job import LocalJob, Models, StartJob
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions, SimulatedBroker, VirtualWorker
from protofleet.lab.virtual.boards import BATCH, BoardWorker, CountedJob, VirtualBoard
from protofleet.lab.virtual.fleet import VirtualDevice
from protofleet.lab.virtual.lines import LinedBroker, VirtualLine
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.base import Item
from protofleet.runtime.host.machine import MACHINE_FOLLOWS, software_words

CPU = torch.device("cpu")


class StateAtWork(DeviceState):
    """The state of a device whose worker saves an update before its virtual work has ended.

    If the coordinator repeats the task during this work, the device must not find the update yet.
    """

    is_working: Callable[[], bool]

    def answer_to(self, question: str) -> Answer | None:
        return None if self.is_working() else super().answer_to(question)


@dataclass
class VirtualFederation(Simulation):
    """A federation in virtual time. A device that is not available is off, and starts again from its files."""

    conditions: NetworkConditions = field(default_factory=lambda: NetworkConditions(delay=0.0))
    fleet: Mapping[str, VirtualDevice] = field(default_factory=dict)
    data: Mapping[str, DataSettings] = field(default_factory=dict)
    networks: Mapping[str, Network] = field(
        default_factory=dict
    )  # Networks of devices with another one than the plan.
    loader: Shards = field(default_factory=Shards)
    software: str = ""
    begins: float = 0.0  # Unix time at which the run begins.

    def __post_init__(self) -> None:
        self.wall = lambda: self.begins + self.clock.now
        self.gone: dict[str, float] = {}  # Devices that do not come back, with the time of their end.
        self.lines = {
            name: VirtualLine.of(device.line, random.Random(f"protofleet line {self.seed} {name}"))
            for name, device in self.fleet.items()
        }
        self.boards = {name: VirtualBoard(device, self.lines[name]) for name, device in self.fleet.items()}
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
            self.kill(device)
        self.boot_device(device)

    @property
    def lacks_quorum(self) -> bool:
        """Return whether so many devices are gone for good that no round can end any more."""
        left = len(self.fleet) - len(self.gone)
        waited = self.clock.now - max(self.gone.values(), default=self.clock.now)
        return left < self.policy.quorum and waited > self.policy.patience_seconds

    def new_state(self, device: str, disk: Disk) -> DeviceState:
        state = StateAtWork(self.folder / device, disk=disk)
        state.is_working = lambda: self.workers[device].is_working
        return state

    def new_worker(self, device: str, take: Callable[[Item], None]) -> VirtualWorker:
        return BoardWorker(self.clock, take, board=self.boards[device])

    def jobs_of(self, device: str, publish: Callable[[Plan], Models] | None) -> StartJob:
        data, board, network = self.shards[device], self.boards[device], self._network_of(device)

        def half_of(plan: Plan) -> ClientHalf:
            public = public_images(plan, self.data[device], self.loader)
            return plan.client_half(
                data.train, device, network, CPU, validation=data.validation, public=public
            )

        def start(plan: Plan) -> CountedJob:
            half = half_of(plan)
            job = LocalJob(half, data, plan.variant.reports, metrics=plan.metrics())
            return CountedJob(job, half.model, board, int(getattr(plan.settings(), "batch", BATCH)))

        return start

    def options_of(self, device: str) -> AgentOptions:
        board = self.boards[device]
        return replace(
            super().options_of(device),
            software=self.software,
            about=f"{software_words(self.software)}{MACHINE_FOLLOWS}{self.fleet[device].words}",
            clock=lambda: board.seconds,
            energy=board.meter(self.clock),
        )

    def _network_of(self, device: str) -> Network | None:
        network = self.networks.get(device)
        return network and network.taken(self.plugins)
