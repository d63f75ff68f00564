"""Tests of virtual time and the simulated broker."""

import random

import pytest

from protofleet.lab.simulation.network import NetworkConditions, SimulatedBroker, VirtualClock, matches
from protofleet.protocol.transport.base import Arrived, Connected, Will


def connected(conditions, seed=0):
    """Return a clock, a broker, and a list with the time and the item of each delivery to `a`."""
    clock, heard = VirtualClock(), []
    broker = SimulatedBroker(clock, conditions, seed)
    broker.connect("a", lambda item: heard.append((clock.now, item)), {"fleet/+/up"})
    return clock, broker, heard


def frames(heard):
    return [item.frame for _, item in heard if isinstance(item, Arrived)]


def test_calls_run_by_time_and_calls_of_the_same_time_in_the_order_of_the_requests():
    clock, order = VirtualClock(), []
    for when, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        clock.call_at(when, lambda name=name: order.append((clock.now, name)))
    clock.run(lambda: False)
    assert order == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_a_message_arrives_after_the_delay_and_only_at_subscribers():
    clock, broker, heard = connected(NetworkConditions(delay=0.5))
    broker.publish("fleet/b/up", b"for a", retain=False)
    broker.publish("fleet/b/down", b"for others", retain=False)
    clock.run(lambda: False)
    assert [(when, type(item)) for when, item in heard] == [(0.0, Connected), (0.5, Arrived)]
    assert frames(heard) == [b"for a"]


def test_a_later_subscriber_gets_the_retained_message():
    clock, broker, _ = connected(NetworkConditions())
    broker.publish("fleet/state", b"old", retain=True)
    broker.publish("fleet/state", b"new", retain=True)
    later = []
    broker.connect("b", later.append, {"fleet/state"})
    clock.run(lambda: False)
    assert [item.frame for item in later if isinstance(item, Arrived)] == [b"new"]


def test_the_broker_publishes_the_will_of_a_lost_client_and_delivers_nothing_to_it():
    clock, broker, heard = connected(NetworkConditions())
    lost = []
    client = broker.connect("b", lost.append, {"fleet/a/up"})
    client.will = Will("fleet/b/up", b"gone")
    clock.run(lambda: False)
    broker.lose_client("b")
    broker.publish("fleet/a/up", b"too late", retain=False)
    clock.run(lambda: False)
    assert frames(heard) == [b"gone", b"too late"]
    assert not [item for item in lost if isinstance(item, Arrived)]


@pytest.mark.parametrize(
    ("conditions", "counts"),
    [(NetworkConditions(loss=1.0), {0}), (NetworkConditions(repeat=1.0), {2}), (NetworkConditions(), {1})],
)
def test_the_conditions_make_a_message_lost_repeated_or_delivered_once(conditions, counts):
    clock, broker, heard = connected(conditions)
    for number in range(20):
        broker.publish("fleet/b/up", b"%d" % number, retain=False)
    clock.run(lambda: False)
    assert {frames(heard).count(b"%d" % number) for number in range(20)} == counts


def test_the_same_seed_gives_the_same_deliveries_and_another_seed_gives_others():
    def deliveries(seed):
        clock, broker, heard = connected(NetworkConditions(jitter=1.0, loss=0.3, repeat=0.3), seed)
        for number in range(50):
            broker.publish("fleet/b/up", b"%d" % number, retain=False)
        clock.run(lambda: False)
        return [(when, item.frame) for when, item in heard if isinstance(item, Arrived)]

    assert deliveries(1) == deliveries(1)
    assert deliveries(1) != deliveries(2)


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [("a/+/c", "a/b/c", True), ("a/+", "a/b/c", False), ("a/b", "a/b", True), ("a/+/c", "a/b/d", False)],
)
def test_a_plus_matches_one_topic_level(pattern, topic, fits):
    assert matches(pattern, topic) is fits


class BrokerThatChecksAllClients(SimulatedBroker):
    """The plain computation: each message is compared with all topics of all clients."""

    def publish(self, topic, frame, retain):
        self.bytes_received += len(frame)
        if retain:
            self.retained[topic] = frame
        for client in list(self.clients.values()):
            if any(matches(t, topic) for t in client.topics):
                self._send(client, topic, frame)

    def send_retained(self, client, pattern):
        for topic, frame in sorted(self.retained.items()):
            if matches(pattern, topic):
                self._send(client, topic, frame, retained=True)


TOPICS = [f"fleet/{level}/{name}" for level in ("up", "down") for name in "abcde"]
PATTERNS = [*TOPICS, "fleet/up/+", "fleet/+/a", "+/+/+", "fleet/+"]
HARSH = NetworkConditions(jitter=1.0, loss=0.3, repeat=0.3)


STEPS = ("connect", "subscribe", "unsubscribe", "publish", "publish", "lose")


def random_deliveries(kind, seed):
    """Connect, subscribe, publish and lose clients at random; return each delivery with its time and its receiver."""
    rng, clock, heard = random.Random(seed), VirtualClock(), []
    broker, clients = kind(clock, HARSH, seed), []

    def connect(name):
        return broker.connect(
            name, lambda item: heard.append((clock.now, name, item)), set(rng.sample(PATTERNS, 3))
        )

    for number in range(300):
        what, name = rng.choice(STEPS), rng.choice("abcde")
        client = rng.choice(clients) if clients else None  # It may have been lost or replaced.
        if what == "connect":
            clients.append(connect(name))
            clients[-1].will = Will(f"fleet/up/{name}", b"gone")
        elif what == "lose" and name in broker.clients:
            broker.lose_client(name)
        elif what == "publish":
            broker.publish(rng.choice(TOPICS), b"%d" % number, retain=rng.random() < 0.3)
        elif client is not None and what == "subscribe":
            client.subscribe(rng.choice(PATTERNS))
        elif client is not None and what == "unsubscribe":
            client.unsubscribe(rng.choice(sorted(client.topics) or PATTERNS))
        clock.run(lambda: False, limit=clock.now + rng.random())
    clock.run(lambda: False)
    return [(when, name, item) for when, name, item in heard if isinstance(item, Arrived)]


@pytest.mark.parametrize("seed", range(12))
def test_each_seed_gives_the_same_deliveries_as_a_broker_that_checks_all_clients(seed):
    found = random_deliveries(SimulatedBroker, seed)
    assert found == random_deliveries(BrokerThatChecksAllClients, seed)
    assert len(found) > 50


def work_of_messages(clients):
    """Return how often the broker compares a topic with a pattern while 20 messages go to one client each."""
    broker = SimulatedBroker(VirtualClock())
    broker.connect("coordinator", lambda item: None, {"fleet/up/+"})
    for number in range(clients):
        broker.connect(f"d{number}", lambda item: None, {f"fleet/down/d{number}", "fleet/now"})
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "protofleet.lab.simulation.network.matches", lambda *pair: calls.append(pair) or matches(*pair)
        )
        for number in range(20):
            broker.publish(f"fleet/down/d{number}", b"", retain=False)
    return len(calls)


def test_the_work_of_a_publish_does_not_grow_with_the_number_of_other_clients():
    assert work_of_messages(20) == work_of_messages(400) == 20
