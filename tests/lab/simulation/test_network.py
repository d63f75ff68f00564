"""Tests of virtual time and the simulated broker."""

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


def test_calls_run_in_the_order_of_their_times_and_then_in_the_order_of_the_requests():
    clock, order = VirtualClock(), []
    for when, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        clock.call_at(when, lambda name=name: order.append((clock.now, name)))
    clock.run(lambda: False)
    assert order == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_a_message_arrives_after_the_delay_at_subscribers_alone():
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
def test_a_message_is_lost_repeated_or_delivered_once_as_the_conditions_say(conditions, counts):
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
def test_a_plus_stands_for_one_level(pattern, topic, fits):
    assert matches(pattern, topic) is fits
