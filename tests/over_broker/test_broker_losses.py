"""Mosquitto reports "Success" and drops messages: each test first shows a loss, and then a federation survives it.

The broker has the project's settings: TLS 1.3, certificates, access rules. Only its queues are small, so that
three devices meet what otherwise takes hundreds of devices.
"""

import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTv5
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from protofleet.coordinator.round.events import Accept
from protofleet.federation.brokers.local import LocalBroker, MutualTls
from protofleet.federation.enrol.local_federation import enrol_federation
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network
from protofleet.protocol.transport.address import BrokerAddress, BrokerError
from protofleet.protocol.transport.tls import rereading_context
from protofleet.protocol.wire.names import COORDINATOR
from tests.chaos.proxy import Proxy
from tests.conftest import missing
from tests.support.federation_over_broker import DEVICES, AtAnswer, Federation
from tests.support.small_federation import POLICY, assert_same, shard

pytestmark = pytest.mark.slow
LARGE = Network("mlp", feature_size=2000)  # The weights have 1.7 MB; an update is 26 blocks.
QUEUE = 8  # Messages that the broker keeps for one client, in addition to those in flight.
WAYS_TO_ARRIVE = ("accepted", "duplicate", "unknown_object", "flood", "bad_block")
SMALL_QUEUES = (f"max_queued_messages {QUEUE}", "max_inflight_messages 2")


class Accepted(Counter):
    """An observer that counts how often each update was accepted."""

    def happened(self, service, event, commands, now):
        self.update((c.round, c.phase, c.device) for c in commands if isinstance(c, Accept))

    def answered(self, service, update, now):
        """Do nothing, because only accepted updates count."""

    stepped = answered


class Harmed(Federation):
    """A federation at a broker with TLS and access rules, with a proxy on the line of each party."""

    def __init__(self, folder, fleet, broker, federation, network=None):
        super().__init__(folder / "run", broker.address, federation, "fedavg")
        if network:
            self.plan = replace(self.plan, network=network)
        self.fleet, self.broker, self.accepted = fleet, broker, Accepted()
        target = (broker.address.host, broker.address.port)
        self.lines = {name: Proxy("127.0.0.1", target) for name in (COORDINATOR, *DEVICES)}

    def at(self, name):
        return BrokerAddress("127.0.0.1", self.lines[name].port, self.fleet.tls(name))

    def begin(self, *observers):
        service, inbox = self.coordinator()
        service.run.observers += [self.accepted, *observers]
        self.start(service, inbox)
        for i, name in enumerate(DEVICES):
            self.start(*self.device(name, i))
        return self

    def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not become true"
            time.sleep(0.002)

    def finish(self, folder):
        """Wait for the end, and check that every update was accepted once.

        The bits are those of a run without trouble.
        """
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), "the federation did not come to its end"
        rounds = [(r, "train") for r in range(1, 4)] + [(4, "evaluate")]
        assert self.accepted == {(*place, name): 1 for place in rounds for name in DEVICES}
        untroubled = Simulation(self.plan, {n: shard(i) for i, n in enumerate(DEVICES)}, POLICY, folder)
        assert_same(SimpleNamespace(service=self.service, agents=self.agents), untroubled.run())

    def blocks(self, name, way, *results):
        """Return how many blocks a party has sent in this direction, or received."""
        part = self.service.run.link if name == COORDINATOR else self.agents[name].link
        counted = part.meter.messages.items()
        return sum(n for (w, kind, r), n in counted if (w, kind) == (way, "block") and r in results)

    def lost_answers(self):
        """Return the number of blocks of updates that left a device and did not arrive."""
        sent = sum(self.blocks(name, "up", "sent") for name in self.agents)
        return sent - self.blocks(COORDINATOR, "up", *WAYS_TO_ARRIVE)

    def close(self):
        super().close()
        for line in self.lines.values():
            line.close()


@pytest.fixture
def secured(tmp_path, federation):
    """Yield a maker of a fleet with a broker that takes more lines of settings."""
    brokers = []

    def make(*more, network=None):
        fleet = enrol_federation(tmp_path / "enrolled", federation, DEVICES)
        try:
            mutual_tls = MutualTls(fleet.folder_of("broker"), fleet.tls(COORDINATOR))
            broker = LocalBroker(tmp_path / "logs", "mosquitto", extra_lines=more, mutual_tls=mutual_tls)
        except BrokerError as error:
            missing(error)
        brokers.append(broker)
        broker.start()
        made = Harmed(tmp_path, fleet, broker, federation, network)
        brokers.append(SimpleNamespace(stop=made.close))
        return made

    yield make
    for broker in reversed(brokers):
        broker.stop()


class Bare:
    """A plain paho client that reads only when the test tells it to."""

    def __init__(self, made, name, session=0):
        address = made.fleet.tls(name)
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5)
        self.client.tls_set_context(rereading_context(address))
        self.came, self.answers, self.granted = [], [], []
        self.client.on_message = lambda _c, _d, message: self.came.append(bytes(message.payload))
        self.client.on_publish = lambda _c, _d, mid, code, _p: self.answers.append(str(code))
        self.client.on_subscribe = lambda *_: self.granted.append(True)
        self._broker, self.session = made.broker.address, session
        self.connect()

    def connect(self):
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self.session
        host, port = self._broker.host, self._broker.port
        self.client.connect(host, port, 60, clean_start=not self.session, properties=properties)
        self.read(self.client.is_connected)

    def read(self, until, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            self.client.loop(0.05)
        return until()

    def listen(self, topic):
        self.client.subscribe(topic, qos=1)
        assert self.read(lambda: self.granted)

    def say(self, topic, number):
        for i in range(number):
            self.client.publish(topic, i.to_bytes(4, "big") + bytes(4000), qos=1)
        assert self.read(lambda: len(self.answers) == number)
        assert set(self.answers) == {"Success"}, "a PUBACK is no delivery"

    def leave(self):
        self.client.disconnect()
        self.read(lambda: not self.client.is_connected())


def test_updates_arrive_although_a_slow_subscriber_loses_acknowledged_messages(secured, tmp_path):
    made = secured(*SMALL_QUEUES, network=LARGE)
    topic = made.topics.up("device-0")
    slow, fast = Bare(made, COORDINATOR), Bare(made, "device-0")
    slow.listen(topic)
    fast.say(topic, 1500)  # These 6 MB are more than sockets hold, and the subscriber does not read.
    assert slow.read(lambda: len(slow.came) > QUEUE), "the messages in the sockets arrive after any time"
    slow.read(lambda: slow.came[-1:] and slow.came[-1].startswith((1499).to_bytes(4, "big")), seconds=2.0)
    assert len(slow.came) < 1500, "the broker has lost some, and reported no error"
    slow.leave()
    fast.leave()

    made.lines[COORDINATOR].seconds = 0.02  # The time of 64 KiB.
    made.begin()
    made.until(lambda: made.lost_answers() > 40)  # More blocks than were in flight at a time.
    made.lines[COORDINATOR].seconds = 0.0
    made.finish(tmp_path / "sim")


def test_a_device_catches_up_although_its_session_loses_acknowledged_messages(secured, tmp_path):
    made = secured(*SMALL_QUEUES, network=LARGE)
    topic = made.topics.down("device-0")
    away, near = Bare(made, "device-0", session=600), Bare(made, COORDINATOR)
    away.listen(topic)
    away.leave()
    near.say(topic, 100)
    away.connect()
    assert away.read(lambda: away.came), "the kept messages arrive after any time"
    away.read(lambda: len(away.came) > 2 * QUEUE, seconds=1.0)
    assert len(away.came) <= QUEUE + 2, "the broker has kept some for the session, and dropped the rest"
    away.session = 0
    away.connect()  # This is a clean start, which ends the session.
    away.leave()
    near.leave()

    late = made.lines["device-2"]
    late.seconds = 0.05
    made.begin()
    # Wait for the middle of a broadcast.
    made.until(lambda: (made.agents["device-2"].link.progress or (0, 0))[0] > 1)
    late.reset()
    others = [made.agents[name] for name in DEVICES[:2]]
    made.until(lambda: all(a.state.last_round >= 1 for a in others))  # They have the whole broadcast.
    missed = made.blocks(COORDINATOR, "down", "sent") - made.blocks("device-2", "down", *WAYS_TO_ARRIVE)
    assert missed > 2 * QUEUE, "more than the broker keeps for it"
    late.seconds = 0.0
    late.resume()
    made.finish(tmp_path / "sim")


def test_no_update_is_lost_if_the_broker_is_killed_twice_and_restarts_without_state(secured, tmp_path):
    made = secured("persistence false", network=LARGE)
    for line in made.lines.values():
        line.seconds = 0.02
    made.begin()
    made.until(lambda: (made.agents["device-0"].link.progress or (0, 0))[0] > 3)  # A broadcast is under way.
    made.broker.kill()
    made.broker.start()
    folder = tmp_path / "run" / "coordinator" / "updates"
    made.until(lambda: list(folder.glob("*/*.part")))  # An update is under way.
    made.broker.kill()
    made.broker.start()
    for line in made.lines.values():
        line.seconds = 0.0
    made.finish(tmp_path / "sim")


def test_a_round_that_is_repeated_after_a_long_outage_gets_the_same_updates(secured, tmp_path):
    """Seconds stand for ten minutes of sessions and patience (600 s).

    Both are over when the broker comes back.
    """
    made = secured(network=Network("mlp"))
    made.session_seconds, made.policy = 1, replace(POLICY, patience_seconds=2.0, settle_seconds=0.2)
    killed = AtAnswer(2, made.broker.kill)
    made.begin(killed)
    made.until(killed.done.is_set)
    before = time.monotonic()
    machine = made.service.run.machine
    made.until(lambda: time.monotonic() - before > 3.0 and (machine.attempt or len(machine.answered) == 3))
    made.broker.start()
    made.finish(tmp_path / "sim")
