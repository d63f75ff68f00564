"""A whole federation in one process: the real agents and coordinator, joined by a simulated network.

A crash is a new coordinator or agent, made from what is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.limits import Limits
from protofleet.coordinator.observe.view import Observer
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.run import Run
from protofleet.coordinator.service import CoordinatorService
from protofleet.coordinator.spool.spool import Spool
from protofleet.deploy.simulation.world import Broker, NetworkConditions, VirtualWorker, World
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import local_jobs
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.meter import Meter
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.base import Item
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import EventLoopApp

Build = Callable[[str, Plan, Splits], ClientHalf]


def no_clock() -> float:
    """How long work takes must not be part of a run that is to repeat to the bit."""
    return 0.0


def disk_without_fsync(party: str) -> Disk:
    """A simulated crash loses nothing that was written."""
    return Disk(durable=False)


def build_half(device: str, plan: Plan, data: Splits) -> ClientHalf:
    return plan.client_half(data.train, device)


@dataclass
class Simulation:
    plan: Plan
    shards: Mapping[str, Splits]  # by device
    policy: Policy
    folder: Path
    conditions: NetworkConditions = field(default_factory=NetworkConditions)
    seed: int = 0
    work_seconds: float = 1.0
    build: Build = build_half
    observers: list[Observer] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    disks: Callable[[str], Disk] = disk_without_fsync  # by party, anew at each of its boots
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.world = World(self.conditions, self.seed)
        self.broker = Broker(self.world)
        self.topics = Topics("simulated")
        self.keys = {name: Keys.new() for name in (COORDINATOR, *self.shards)}
        self.ring = {name: keys.public for name, keys in self.keys.items()}
        self.agents: dict[str, Agent] = {}
        self.workers: dict[str, VirtualWorker] = {}
        self.boots = 0
        self.boot_coordinator()
        for device in self.shards:
            self.boot_device(device)

    def run(self, until: Callable[[], bool] | None = None, limit: float = 1e5) -> Simulation:
        self.world.run(until or (lambda: self.service.finished), self.world.now + limit)
        return self

    def boot_coordinator(self) -> None:
        """Start a coordinator that knows only what the disk holds, as after a crash."""
        self._halt(COORDINATOR)
        self.boots += 1
        disk = self.disks(COORDINATOR)
        spool = Spool(self.folder / "coordinator", disk=disk)
        epoch = spool.start_run(self.plan.method, self.plan.encode().decode(), self.boots)
        take = self._feed(COORDINATOR, lambda: self.service)
        worker = self.workers[COORDINATOR] = VirtualWorker(self.world, take)

        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        session = self.broker.session(COORDINATOR, take, set(self.topics.coordinator_subscriptions()))
        session.before_step = disk.before_step
        link = CoordinatorLink(me, self.ring, self.topics, session, spool.store, "simulated")
        session.will = link.will(self.topics.coord_state)
        machine = RoundMachine(self.policy, self.plan.rounds, self.plan.seed)
        context = ProcessContext(link, worker, Bans(spool.folder, spool.disk))
        run = Run(self.plan, machine, spool, context, self.observers, self.limits, self.class_names)
        self.service = CoordinatorService(context, run)

    def boot_device(self, device: str) -> None:
        self._halt(device)
        disk = self.disks(device)
        memory = DeviceState(self.folder / device, disk=disk)
        me = Identity(device, memory.boot(0), self.keys[device])
        take = self._feed(device, lambda: self.agents[device])
        worker = self.workers[device] = VirtualWorker(self.world, take, self.work_seconds)
        topics = set(self.topics.device_subscriptions(device))
        session = self.broker.session(device, take, topics)
        session.before_step = disk.before_step
        link = DeviceLink(me, self.ring, self.topics, session, memory.store)
        session.will = link.will(self.topics.device_state(device))
        data = self.shards[device]
        start_job = local_jobs(lambda plan: self.build(device, plan, data), data)
        agent = Agent(data, start_job, link, memory, worker, clock=no_clock)
        self.agents[device] = agent

    def kill(self, name: str) -> None:
        """The process is gone; the broker notices and publishes its will."""
        self._halt(name)
        self.broker.lose_client(name)

    @property
    def meters(self) -> dict[str, Meter]:
        return {COORDINATOR: self.service.link.meter, **{d: a.link.meter for d, a in self.agents.items()}}

    def _halt(self, name: str) -> None:
        if worker := self.workers.get(name):
            worker.alive = False

    def _feed(self, name: str, party: Callable[[], EventLoopApp]) -> Callable[[Item], None]:
        """Hand items to a party as its event loop would, and wake it when it has asked for it."""

        def take(item: Item) -> None:
            party().take(item, self.world.now)
            self._arm(party(), self.workers[name])

        return take

    def _arm(self, party: EventLoopApp, worker: VirtualWorker) -> None:
        if party.finished or party.wake_at == float("inf"):
            return

        def wake() -> None:
            if worker.alive and not party.finished and party.wake_at <= self.world.now:
                party.wake(self.world.now)
                self._arm(party, worker)

        self.world.at(max(party.wake_at, self.world.now), wake)
