"""The same agents and service over a real broker give the same bits, and every byte is accounted for."""

import queue
import threading
import time
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.service import Service
from protofleet.coordinator.spool.spool import Spool
from protofleet.deploy.brokers.local import LocalBroker
from protofleet.edge_client.agent import Agent
from protofleet.edge_client.state.device import Memory
from protofleet.methods.contract.catalog import names
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.keys import Identity, Keys
from protofleet.protocol.transport.base import Arrived, Stop
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.event_loop import ThreadWorker, serve
from tests.worlds import POLICY, assert_same, plan, shard, simulation

DEVICES = [f"device-{i}" for i in range(3)]


class Federation:
    """A coordinator and devices as threads of this process, each with a connection of its own."""

    coordinators_inbox = devices_inbox = queue.SimpleQueue
    session_seconds = 60
    clock = staticmethod(time.monotonic)
    policy = POLICY

    def __init__(self, folder, address, federation, method):
        self.folder, self.address, self.topics = folder, address, Topics(federation)
        self.plan = plan(method)
        self.keys = {n: Keys.new() for n in (COORDINATOR, *DEVICES)}
        self.ring = {n: k.public for n, k in self.keys.items()}
        self.agents, self.inboxes, self.threads = {}, {}, []

    def coordinator(self):
        inbox = self.coordinators_inbox()
        spool = Spool(self.folder / "coordinator", durable=False)
        epoch = spool.start_run("test", self.plan.encode().decode(), 1)

        me = Identity(COORDINATOR, epoch, self.keys[COORDINATOR])
        topics = self.topics.coordinator_subscriptions()
        transport = Mqtt(f"{self.topics.federation}-c", self.at(COORDINATOR), inbox, subscriptions=topics)
        link = CoordinatorLink(me, self.ring, self.topics, transport, spool.store, "test")
        self.service = Service(
            self.plan, RoundMachine(self.policy, self.plan.seed), spool, ThreadWorker(inbox), link
        )
        transport.connect(link.will(self.topics.coord_state))
        return self.service, inbox

    def device(self, name, i):
        inbox = self.devices_inbox()
        memory = Memory(self.folder / name, durable=False)
        me = Identity(name, memory.boot(0), self.keys[name])
        transport = Mqtt(
            f"{self.topics.federation}-{name}", self.at(name), inbox, clean_start=False,
            subscriptions=self.topics.device_subscriptions(name), session_seconds=self.session_seconds,
        )  # fmt: skip
        link = DeviceLink(me, self.ring, self.topics, transport, memory.store)
        transport.connect(link.will(self.topics.device_state(name)))
        data = shard(i)
        agent = Agent(
            data,
            lambda p: p.client_half(data.train, name),
            link,
            memory,
            ThreadWorker(inbox),
            clock=lambda: 0.0,
        )
        self.agents[name], self.inboxes[name] = agent, inbox
        return agent, inbox

    def at(self, name):
        """The broker, as this party reaches it."""
        return self.address

    def start(self, party, inbox):
        thread = threading.Thread(target=serve, args=(party, inbox, self.clock), daemon=True)
        thread.start()
        self.threads.append(thread)

    def run(self):
        self.start(*self.coordinator())
        for i, name in enumerate(DEVICES):
            self.start(*self.device(name, i))
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "the federation did not come to its end"
        return self

    def close(self):
        for party in (self.service, *self.agents.values()):
            party.link.transport.close()


@contextmanager
def running(folder, address, federation, method):
    made = Federation(folder, address, federation, method)
    try:
        yield made.run()
    finally:
        made.close()


@pytest.mark.parametrize("method", names())
def test_a_federation_over_mosquitto_ends_with_the_simulators_bits(method, tmp_path, broker, federation):
    with running(tmp_path / "real", broker.address, federation, method) as real:
        assert real.service.finished
        assert_same(
            SimpleNamespace(service=real.service, agents=real.agents),
            simulation(tmp_path / "sim", method).run(),
        )


def test_a_federation_over_the_embedded_broker_ends_with_the_same_bits(tmp_path, embedded, federation):
    with running(tmp_path / "real", embedded.address, federation, "fedavg") as real:
        assert_same(
            SimpleNamespace(service=real.service, agents=real.agents),
            simulation(tmp_path / "sim", "fedavg").run(),
        )


def test_what_the_meters_count_is_what_the_broker_counted(tmp_path, federation, peer):
    with LocalBroker(tmp_path / "broker", "mosquitto", sys_seconds=1) as own:
        with running(tmp_path / "run", own.address, federation, "fedavg") as run:
            sent = Counter()
            for party in (run.service, *run.agents.values()):
                sent[party.link.direction] += party.link.meter.frames[party.link.direction]
            wills = 0  # everybody leaves in good order: no will is said
            assert counted(own, "publish/bytes/received", sum(sent.values()) + wills, peer)
        coordinator, devices = run.service.link.meter, [a.link.meter for a in run.agents.values()]
        assert coordinator.frames["up"] == sum(m.frames["up"] for m in devices)
        for kind in {k for d, k in coordinator.wire if d == "up"}:
            assert coordinator.wire["up", kind] == sum(m.wire["up", kind] for m in devices)
            assert coordinator.payload["up", kind] == sum(m.payload["up", kind] for m in devices)
        assert {m.payload["down", "weights"] for m in devices} == {coordinator.payload["down", "weights"]}


def counted(broker, name, expected, peer):
    """True once the broker's own counter says so; it publishes its counters every second."""
    watcher = peer("watcher", broker.address, subscriptions=[f"$SYS/broker/{name}"])
    seen = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            item = watcher.inbox.get(timeout=2)
        except queue.Empty:
            continue
        if isinstance(item, Arrived):
            seen.append(int(item.frame))
            if seen[-1] == expected:
                return True
    raise AssertionError(f"the broker counted {seen}, the meters {expected}")


def test_a_killed_coordinator_goes_on_over_the_broker_with_the_same_bits(tmp_path, broker, federation):
    made = Federation(tmp_path / "real", broker.address, federation, "fedavg")
    service, inbox = made.coordinator()
    made.start(service, inbox)
    for i, name in enumerate(DEVICES):
        made.start(*made.device(name, i))
    deadline = time.monotonic() + 30
    while service.machine.round < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    inbox.put(Stop("killed"))  # it stops where it stands; nothing is saved for the occasion
    made.threads[0].join(10)
    service.link.transport.kill()
    service.spool.shut()
    made.start(*made.coordinator())
    for thread in made.threads:
        thread.join(60)
        assert not thread.is_alive()
    made.close()
    assert_same(
        SimpleNamespace(service=made.service, agents=made.agents),
        simulation(tmp_path / "sim", "fedavg").run(),
    )
