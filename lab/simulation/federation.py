"""Run a whole federation in one process: the real agents and coordinator, with a simulated network.

To simulate a crash, a coordinator or an agent is replaced by a new object, which reads the files on the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe.view import RunObserver
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions, DeviceData, agent_parts
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.privacy import PrivacySettings
from protofleet.edge_client.serving.publisher import ModelOrigin, ModelPublisher
from protofleet.edge_client.serving.serving import ModelServing
from protofleet.edge_client.serving.settings import ModelSettings
from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import Models, StartJob, local_jobs
from protofleet.lab.simulation.network import (
    NetworkConditions,
    SimulatedBroker,
    VirtualClock,
    VirtualWorker,
)
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.meter import Meter
from protofleet.protocol.security.keys import Identity, Keyring, Keys
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.base import Item
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import EventLoopApp

Build = Callable[[str, Plan, Splits], ClientHalf]


def no_clock() -> float:
    """Return 0. A measured duration would differ between two runs with the same seed."""
    return 0.0


def disk_without_fsync(name: str) -> Disk:
    """Return a disk without fsync, because a simulated crash does not lose data that were written."""
    return Disk(durable=False)


def build_half(device: str, plan: Plan, data: Splits) -> ClientHalf:
    return plan.client_half(data.train, device, validation=data.validation)


@dataclass
class Simulation:
    plan: Plan
    shards: Mapping[str, Splits]  # The data of each device, by its name.
    policy: Policy
    folder: Path
    conditions: NetworkConditions = field(default_factory=NetworkConditions)
    seed: int = 0
    work_seconds: float = 1.0
    build: Build = build_half
    observers: list[RunObserver] = field(default_factory=list)
    limits: CoordinatorLimits = field(default_factory=CoordinatorLimits)
    # A function that gets the name of a party at each boot, and returns the disk of this party.
    make_disk: Callable[[str], Disk] = disk_without_fsync
    class_names: tuple[str, ...] = ()
    plugins: PlugIns = field(default_factory=PlugIns)  # Plug-ins that every device allows.
    privacy: PrivacySettings = field(default_factory=PrivacySettings)  # Demands of every device on a plan.
    budget: BudgetSettings | None = None
    wall: Callable[[], float] = time.time  # Function that returns the Unix time of the coordinator.
    # The settings of those devices that serve models, by device name.
    serves: Mapping[str, ModelSettings] = field(default_factory=dict)
    # The length of a turn of an event loop, in seconds. The loop takes all items that arrive during the turn. At
    # the end of the turn, the loop commits the changes and sends the messages that result from these items.
    turn_seconds: float = 0.0
    runs: int = 1  # The largest number of runs in which a device takes part at the same time.
    federation: str = "simulated"  # The name of the federation and of its run on the wire.
    sealed: bool = True

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = self.new_broker()
        self.topics = Topics(self.federation)
        self.keys = {name: Keys.new() for name in (COORDINATOR, *self.shards)}
        self.keyring: Keyring = {name: keys.public for name, keys in self.keys.items()}
        self.enrol()
        self.agents: dict[str, Agent] = {}
        self.workers: dict[str, VirtualWorker] = {}
        self.boots = 0
        self.boot_coordinator()
        for device in self.shards:
            self.boot_device(device)

    def new_broker(self) -> SimulatedBroker:
        return SimulatedBroker(self.clock, self.conditions, self.seed)

    def enrol(self) -> None:
        """Do nothing: by default, each party knows the public keys of all others."""

    def keyring_of(self, name: str) -> Keyring:
        """Return the keys that a party knows."""
        return self.keyring

    def run(self, until: Callable[[], bool] | None = None, limit: float = 1e5) -> Simulation:
        self.clock.run(until or (lambda: self.service.finished), self.clock.now + limit)
        return self

    def boot_coordinator(self) -> None:
        """Start a coordinator that knows only the files on the disk, as after a crash."""
        disk = self.boot_coordinator_host()
        spool = Spool(self.folder / "coordinator", disk=disk)
        epoch = spool.start_run(self.plan.method, self.plan.encode().decode(), self.boots)
        context = self.connect_coordinator(epoch, disk, spool.folder)
        machine = RoundMachine(self.policy, self.plan.rounds, self.plan.seed)
        part = CoordinatorRunLink(context.link, self.federation, spool.store)
        run = Run(
            self.plan,
            machine,
            spool,
            context,
            part,
            self.observers,
            self.limits,
            self.class_names,
            self.budget,
        )
        self.serve(CoordinatorService(context, [run]))

    def boot_coordinator_host(self) -> Disk:
        """End the coordinator that runs, and return the disk of the next one."""
        self._stop_worker(COORDINATOR)
        self.boots += 1
        return self.make_disk(COORDINATOR)

    def connect_coordinator(self, epoch: int, disk: Disk, folder: Path) -> ProcessContext:
        """Connect a coordinator to the broker, and return what its runs share."""
        take = self._handler(COORDINATOR, lambda: self.service)
        worker = self.workers[COORDINATOR] = VirtualWorker(self.clock, take)
        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        transport = self.broker.connect(COORDINATOR, take, set(self.topics.coordinator_subscriptions()))
        transport.before_step = disk.before_step
        link = CoordinatorLink(me, self.keyring_of(COORDINATOR), self.topics, transport, self.sealed)
        return ProcessContext(link, worker, Bans(folder, disk), self.wall)

    def serve(self, service: CoordinatorService) -> None:
        """Give the coordinator its service, whose run is named in the will of the connection."""
        self.service = service
        self.broker.clients[COORDINATOR].will = service.link.will(self.topics.coord_state)

    def boot_device(self, device: str) -> None:
        self._stop_worker(device)
        disk = self.make_disk(device)
        state = self.new_state(device, disk)
        me = Identity(device, state.boot(0), self.keys[device])
        take = self._handler(device, lambda: self.agents[device])
        worker = self.workers[device] = self.new_worker(device, take)
        topics = set(self.topics.device_subscriptions(device))
        transport = self.broker.connect(device, take, topics)
        transport.before_step = disk.before_step
        link = DeviceLink(me, self.keyring_of(device), self.topics, transport, state.store, self.sealed)
        transport.will = link.will(self.topics.device_state(device))
        data = self.shards[device]
        publish = self._publisher(device, state, data)
        start_job = self.jobs_of(device, publish)
        options = self.options_of(device)
        agent = Agent(*agent_parts(DeviceData(data, start_job), link, state, worker, options))
        self.agents[device] = agent
        if publish is not None:
            versions = ModelVersions(self._models_of(device), self.serves[device].keep, disk)
            serving = ModelServing(versions, lambda: agent.view.plan, None)
            serving.begin()
            agent.observe(serving)

    def new_state(self, device: str, disk: Disk) -> DeviceState:
        return DeviceState(self.folder / device, disk=disk)

    def new_worker(self, device: str, take: Callable[[Item], None]) -> VirtualWorker:
        """Return the worker of a device that starts."""
        return VirtualWorker(self.clock, take, self.work_seconds)

    def jobs_of(self, device: str, publish: Callable[[Plan], Models] | None) -> StartJob:
        """Return the function that starts the jobs of a device."""
        data = self.shards[device]
        return local_jobs(lambda plan: self.build(device, plan, data), data, publish)

    def options_of(self, device: str) -> AgentOptions:
        return AgentOptions(
            clock=no_clock, plugins=self.plugins, privacy=self.privacy, runs=self.runs, stays=self.runs > 1
        )

    def _publisher(self, device: str, state: DeviceState, data: Splits) -> Callable[[Plan], Models] | None:
        if (settings := self.serves.get(device)) is None:
            return None
        publisher = ModelPublisher(settings, state.folder, ModelOrigin(device, None), state.disk)
        return lambda plan: publisher.of(plan, data.names)

    def _models_of(self, device: str) -> Path:
        return self.serves[device].folder_in(self.folder / device)

    def kill(self, name: str) -> None:
        """End the process without a disconnect. The broker then publishes the process's MQTT will."""
        self._stop_worker(name)
        self.broker.lose_client(name)

    @property
    def meters(self) -> dict[str, Meter]:
        return {COORDINATOR: self.service.run.link.meter, **{d: a.link.meter for d, a in self.agents.items()}}

    def _stop_worker(self, name: str) -> None:
        if worker := self.workers.get(name):
            worker.alive = False

    def _handler(self, name: str, app: Callable[[], EventLoopApp[Item]]) -> Callable[[Item], None]:
        return VirtualLoop(self.clock, app, lambda: self.workers[name], self.turn_seconds).take


@dataclass
class VirtualLoop:
    """The event loop of an app in virtual time.

    It gives items to the app, and wakes the app at the time that the app requested.
    """

    clock: VirtualClock
    app: Callable[[], EventLoopApp[Item]]
    # A function that returns the app's current worker. If the worker has ended, the app has ended.
    worker: Callable[[], VirtualWorker]
    turn_seconds: float
    _in_turn: bool = False

    def take(self, item: Item) -> None:
        app, worker = self.app(), self.worker()
        app.take(item, self.clock.now)
        if not self.turn_seconds:
            self._end_turn(app, worker)
        elif not self._in_turn:
            self._in_turn = True
            self.clock.call_at(self.clock.now + self.turn_seconds, lambda: self._end_turn(app, worker))

    def _end_turn(self, app: EventLoopApp[Item], worker: VirtualWorker) -> None:
        self._in_turn = False
        if worker.alive:
            app.end_turn(self.clock.now)
            self._schedule_wake(app, worker)

    def _schedule_wake(self, app: EventLoopApp[Item], worker: VirtualWorker) -> None:
        if app.finished or app.wake_at == float("inf"):
            return

        def wake() -> None:
            if worker.alive and not app.finished and app.wake_at <= self.clock.now:
                app.wake(self.clock.now)
                self._end_turn(app, worker)

        self.clock.call_at(max(app.wake_at, self.clock.now), wake)
