"""A coordinator that conducts several runs with one device, as docs/several-runs.md says, and the world of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.agent_parts import AgentOptions, DeviceData, agent_parts
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.job import local_jobs
from protofleet.lab.simulation.federation import VirtualLoop, build_half, disk_without_fsync, no_clock
from protofleet.lab.simulation.network import SimulatedBroker, VirtualClock, VirtualWorker
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import first_weights
from protofleet.protocol.link.base import Link
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.fetch import indices
from protofleet.protocol.link.meter import DOWN
from protofleet.protocol.link.run_part import RunPart
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.base import Arrived, Connected, Item
from protofleet.protocol.wire.blocks import is_block
from protofleet.protocol.wire.messages import (
    BlockRequest,
    Bye,
    Finished,
    Hello,
    Manifest,
    Message,
    Receipt,
    State,
    Task,
    Update,
    Welcome,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.support.small_federation import shard

DEVICE, TOPICS = "device-0", Topics("test")


@dataclass
class Conducted:
    """A run of one device: each broadcast is the device's last answer."""

    plan: Plan
    offer: Manifest
    round: int = 1
    answers: list[str] = field(default_factory=list)  # The hash of each answer.

    @property
    def over(self) -> bool:
        return self.round > self.plan.rounds


class ScriptedCoordinator(Link, RunPart):
    """The coordinator; if `alone` is true, it conducts one run and does not support several."""

    def __init__(self, me, ring, transport, folder: Path, plans: dict[str, Plan], alone: bool = False):
        Link.__init__(self, me, ring, TOPICS, transport)
        RunPart.__init__(self, self, DOWN)
        self.epoch, self.alone, self.store = me.boot, alone, ObjectStore(folder, disk=Disk(durable=False))
        self.heard: list[tuple[str, Message]] = []  # The run in the header, and the message.
        self.runs = {name: self._begun(plan) for name, plan in plans.items()}

    def _begun(self, plan: Plan) -> Conducted:
        return Conducted(plan, self._offer(self.store.put(to_numpy(first_weights(plan))).object))

    def _offer(self, name: bytes) -> Manifest:
        return self.with_new_key(self.store.manifest(name))

    def take_over(self, run: Conducted, folder: Path) -> Manifest:
        """Return the offer of a run's present broadcast, which an earlier coordinator has in one of these folders."""
        body = next(folder.glob(f"coordinator-*/{run.offer.object.hex()}.body")).read_bytes()
        return self.store.manifest(self.store.put_bytes(body))

    @property
    def active(self) -> tuple[str, ...]:
        return tuple(name for name, run in self.runs.items() if not run.over)

    def say(self, run: str, message: Message) -> None:
        self.run = run
        self.publish(TOPICS.down(DEVICE), message, DEVICE)

    def announce(self, reason: str = "") -> None:
        self.run = next(iter(self.runs)) if self.alone else "legacy"
        runs = None if self.alone else self.active
        self.publish(TOPICS.coord_state, State(True, reason, runs=runs), retain=True)

    def take(self, item: Item, now: float) -> None:
        if isinstance(item, Connected):
            self.announce()
        if (
            isinstance(item, Arrived)
            and not is_block(item.frame)
            and (found := self.open(item.topic, item.frame))
        ):
            header, message, attachment = found
            if header.sender == COORDINATOR:
                return  # The coordinator receives its own message.
            self.heard.append((header.run, message))
            self._handle(header.run, message, attachment)

    def _handle(self, run: str, message: Message, attachment: object) -> None:
        match message:
            case Hello():
                self._hello(run, message)
            case BlockRequest():
                manifest = next(one.offer for one in self.runs.values() if one.offer.object == message.object)
                for index in indices(message.ranges, len(manifest.hashes)):
                    self.send_block(TOPICS.down(DEVICE), self.store, manifest, index, True)
            case Update():
                self._answered(run, message, attachment)

    def _hello(self, run: str, hello: Hello) -> None:
        if run not in self.runs:
            if run and not self.alone:
                self.say(run, Finished(0))
            elif self.alone or hello.capacity:
                self._invite()
        elif self.runs[run].over:
            self.say(run, Finished(self.runs[run].plan.rounds))
        elif hello.plan != self.runs[run].plan.digest:
            self.say(run, Welcome(self.runs[run].plan.encode()))
        else:
            self._ask(run)

    def _invite(self) -> None:
        """Offer every active run that the device has not answered yet."""
        for name in self.active:
            if not self.runs[name].answers:
                self.say(name, Welcome(self.runs[name].plan.encode()))

    def _ask(self, run: str) -> None:
        one = self.runs[run]
        self.say(run, Task(one.round, "train", one.offer, 60.0))

    def _answered(self, run: str, update: Update, body: object) -> None:
        one, digest = self.runs[run], hashlib.sha256(body).hexdigest()
        if update.round == one.round:
            assert update.base == one.offer.object
            one.answers.append(digest)
            one.offer, one.round = self._offer(self.store.put_bytes(body)), one.round + 1
        else:
            assert one.answers[update.round - 1] == digest, "a second, different answer"
        self.say(run, Receipt(update.round, "train", "accepted"))
        if one.over:
            self.announce("here")
            self.say(run, Finished(one.plan.rounds))
        else:
            self._ask(run)

    def _metric_names_of(self, header):
        return ()

    def _check_header(self, header, topic):
        pass

    def _check_content(self, message, attachment):
        pass


class World:
    """A scripted coordinator and one device, in virtual time."""

    def __init__(
        self, folder: Path, plans: dict[str, Plan], alone: bool = False, limit: int = 2,
        make_disk: Callable[[str], Disk] = disk_without_fsync, job: Callable = lambda job: job,
    ) -> None:  # fmt: skip
        self.folder, self.limit, self.make_disk, self.job = folder, limit, make_disk, job
        self.clock = VirtualClock()
        self.broker = SimulatedBroker(self.clock)
        self.keys = {name: Keys.new() for name in (COORDINATOR, DEVICE)}
        self.ring = {name: keys.public for name, keys in self.keys.items()}
        self.boots = 0
        self.boot_coordinator(plans, alone)
        self.worker: VirtualWorker | None = None
        self.boot_device()

    def boot_coordinator(self, plans: dict[str, Plan], alone: bool = False) -> None:
        self.boots += 1
        me = Identity(COORDINATOR, self.boots, self.keys[COORDINATOR])
        transport = self.broker.connect(
            COORDINATOR,
            lambda item: self.coordinator.take(item, self.clock.now),
            set(TOPICS.coordinator_subscriptions()),
        )
        folder = self.folder / f"coordinator-{self.boots}"
        self.coordinator = ScriptedCoordinator(me, self.ring, transport, folder, plans, alone)

    def boot_device(self) -> None:
        disk = self.make_disk(DEVICE)
        state = DeviceState(self.folder / DEVICE, disk=disk)
        me = Identity(DEVICE, state.boot(0), self.keys[DEVICE])
        worker = self.worker = VirtualWorker(self.clock, lambda item: loop.take(item), 1.0)
        loop = VirtualLoop(self.clock, lambda: self.agent, lambda: worker, 0.0)
        transport = self.broker.connect(DEVICE, loop.take, set(TOPICS.device_subscriptions(DEVICE)))
        transport.before_step = disk.before_step
        link = DeviceLink(me, self.ring, TOPICS, transport, state.store)
        transport.will = link.will(TOPICS.device_state(DEVICE))
        data = shard(0)
        jobs = local_jobs(lambda plan: build_half(DEVICE, plan, data), data)
        options = AgentOptions(clock=no_clock, runs=self.limit, stays=True)
        device = DeviceData(data, lambda plan: self.job(jobs(plan)))
        self.agent = Agent(*agent_parts(device, link, state, worker, options))

    def kill_device(self) -> None:
        self.worker.alive = False
        self.broker.lose_client(DEVICE)

    def run(self, until: Callable[[], bool] | None = None, seconds: float = 2000.0) -> World:
        self.clock.run(until or (lambda: not self.coordinator.active), self.clock.now + seconds)
        if until is None:  # The device also receives the end of the run.
            self.clock.run(lambda: False, self.clock.now + 1.0)
        return self

    @property
    def answers(self) -> dict[str, list[str]]:
        return {name: run.answers for name, run in self.coordinator.runs.items()}

    def byes(self) -> list[tuple[str, str]]:
        return [(run, message.reason) for run, message in self.coordinator.heard if isinstance(message, Bye)]
