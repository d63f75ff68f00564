"""Both ends of a link, joined by a simulated network, for tests of the messages that cross the link."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protofleet.lab.simulation.network import NetworkConditions, SimulatedBroker, VirtualClock
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.run_part import RunPart
from protofleet.protocol.security.envelope import seal, unseal
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.base import Arrived, Item
from protofleet.protocol.wire.messages import Task, Update
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics

TOPICS = Topics("test")


@dataclass
class Gate:
    open: bool = True
    asked: bool = False  # Whether an update that the link cannot read is the answer to a task.
    faults: list[Rejected] = field(default_factory=list)

    def is_expected(self, update):
        return self.asked

    def admit(self, update, size, name):
        return self.open

    def unusable(self, update, fault):
        self.faults.append(fault)


class Ends:
    """The links of a coordinator and devices, with the messages that each received (`heard`) and rejected."""

    def __init__(self, folder: Path, devices=("a", "b"), conditions=NetworkConditions(), seed=0):
        self.folder, self.clock = folder, VirtualClock()
        self.broker = SimulatedBroker(self.clock, conditions, seed)
        self.keys = {n: Keys.new() for n in (COORDINATOR, *devices)}
        self.keyring = {n: k.public for n, k in self.keys.items()}
        self.heard: dict[str, list[Received]] = {n: [] for n in self.keys}
        self.rejected: dict[str, list[Rejected]] = {n: [] for n in self.keys}
        self.gate = Gate()
        self.links: dict[str, CoordinatorLink | DeviceLink] = {}
        self.boot_coordinator()
        for device in devices:
            self.boot_device(device)

    @property
    def parts(self) -> dict[str, RunPart]:
        """Return the part of the only run at each end."""
        return {**self.links, COORDINATOR: self.coordinator}

    def boot_coordinator(self, epoch=1):
        session = self._connect(COORDINATOR, TOPICS.coordinator_subscriptions())
        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        link = self.links[COORDINATOR] = CoordinatorLink(me, self.keyring, TOPICS, session)
        self.coordinator = CoordinatorRunLink(link, "", self._spool_of)
        self.coordinator.answers.admission_controller = self.gate
        link.add(self.coordinator)

    def _spool_of(self, device):
        return ObjectStore(self.folder / f"spool-{device}", False)

    def boot_device(self, device, boot=1):
        session = self._connect(device, TOPICS.device_subscriptions(device))
        store = ObjectStore(self.folder / device, durable=False)
        me = Identity(device, boot, self.keys[device])
        self.links[device] = DeviceLink(me, self.keyring, TOPICS, session, store)

    def broadcast(self, arrays, devices, round=1):
        """Offer arrays to devices and send each device a task that names them as its broadcast."""
        store = ObjectStore(self.folder / "broadcasts", durable=False)
        manifest = store.put(arrays, self.coordinator.block)
        manifest = self.coordinator.tasks.offer(manifest, store, list(devices), set())
        for device in devices:
            self.coordinator.send(device, Task(round, "train", manifest))
        return manifest

    def update(self, device, arrays, round=1):
        link = self.links[device]
        name = link.store.put(arrays).object
        link.send_update(Update(device, round, "train", 10), name)
        return name

    def unsealed(self, frame, recipient):
        """Return the header and the payload of a frame, as the recipient reads them."""
        return unseal(frame, self.keyring, self.keys[recipient].receive)

    def sealed(self, header, payload, signer, recipient):
        return seal(header, payload, self.keys[signer].sign, self.keys[recipient].public.receive)

    def run(self, seconds=60.0, until=lambda: False):
        self.clock.run(until, self.clock.now + seconds)

    def results(self, receiver, direction):
        """Return (message kind, result) -> number of messages, as the receiver's meter counted them."""
        counted = self.parts[receiver].meter.messages
        return {(k, r): n for (d, k, r), n in counted.items() if d == direction and r != "sent"}

    def _connect(self, name, topics):
        def take(item: Item) -> None:
            if isinstance(item, Arrived):
                try:
                    self.heard[name] += self.links[name].arrived(item.topic, item.frame, self.clock.now)
                except Rejected as fault:
                    self.rejected[name].append(fault)
                self._arm(name)

        return self.broker.connect(name, take, set(topics))

    def _arm(self, name):
        link = self.links[name]
        if link.wake_at < float("inf"):
            self.clock.call_at(max(link.wake_at, self.clock.now), lambda: self._bell(name, link))

    def _bell(self, name, link):
        if self.links[name] is link and link.wake_at <= self.clock.now:
            link.wake(self.clock.now)
            self._arm(name)


def weights(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"weights.w": np.random.default_rng(seed).standard_normal(size).astype(np.float32)}
