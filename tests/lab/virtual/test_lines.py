"""Tests of lines: when a message arrives that waits for its line and takes the time of its bytes."""

import random

import pytest

from protofleet.lab.simulation.network import NetworkConditions, VirtualClock
from protofleet.lab.virtual.lines import FIRST_WINDOW, HEADERS, SEGMENT, LinedBroker, OneWay, VirtualLine
from protofleet.lab.virtual.profiles import LineProfile
from protofleet.protocol.transport.base import Arrived, packet_bytes


def way(mbits=8.0, delay=0.0, loss=0.0, seed=0):
    return OneWay(mbits, delay, loss, random.Random(seed))


def on_the_line(size):
    return size + HEADERS * -(-size // SEGMENT)


def test_a_message_takes_the_time_of_its_bytes_and_the_delay():
    assert way(mbits=8).send(5.0, 1000) == pytest.approx(5.0 + on_the_line(1000) / 1e6)
    assert way(mbits=8, delay=0.05).send(5.0, 1000) == pytest.approx(5.05 + on_the_line(1000) / 1e6)


def test_a_message_waits_until_the_line_is_free():
    line = way(mbits=8)
    first, second = line.send(0.0, 100_000), line.send(0.0, 100_000)
    assert second == pytest.approx(2 * first)
    assert line.send(10.0, 1000) == pytest.approx(10.0 + on_the_line(1000) / 1e6)


def round_trips(size, rate, trip):
    """Count the round trips in which a sender waits, window by window, as an independent check."""
    sent, window, waits = 0.0, FIRST_WINDOW, 0
    while window < rate * trip and sent + window < on_the_line(size):
        sent, window, waits = sent + window, 2 * window, waits + 1
    return waits, on_the_line(size) - sent


@pytest.mark.parametrize("size", [1000, 14_000, 20_000, 40_000, 200_000, 2_000_000])
def test_a_sender_has_a_slow_start_after_a_pause(size):
    waits, left = round_trips(size, 1e6, 0.1)
    assert way(mbits=8, delay=0.05).send(0.0, size) == pytest.approx(0.1 * waits + left / 1e6 + 0.05)


def test_a_sender_without_a_pause_has_a_slow_start_only_once():
    line = way(mbits=8, delay=0.05)
    at = line.send(0.0, 500_000)
    soon = line.send(line.busy_until, 100_000)
    assert soon - at == pytest.approx(on_the_line(100_000) / 1e6)
    later = line.busy_until + 10
    assert line.send(later, 100_000) - later > on_the_line(100_000) / 1e6 + 0.15


@pytest.mark.parametrize(("pause", "waits"), [(0.29, 0), (0.31, 1), (0.61, 2), (100.0, 2)])
def test_each_time_out_in_a_pause_halves_the_window_of_the_sender(pause, waits):
    """A time-out is 0.3 s. After the first message, 58 kB may be sent at once; the second one has 50 kB."""
    line = way(mbits=80, delay=0.05)
    line.send(0.0, 40_000)
    begun = line.busy_until + pause
    sizes = {0: 0, 1: 2 * FIRST_WINDOW, 2: 3 * FIRST_WINDOW}
    expected = 0.1 * waits + (on_the_line(50_000) - sizes[waits]) / 1e7 + 0.05
    assert line.send(begun, 50_000) - begun == pytest.approx(expected)


def test_lost_packets_are_sent_again():
    lossy = [way(mbits=8, delay=0.05, loss=0.1, seed=seed) for seed in range(50)]
    arrivals = [line.send(0.0, 100_000) for line in lossy]
    without = way(mbits=8, delay=0.05).send(0.0, 100_000)
    assert all(arrival >= without for arrival in arrivals)
    mean = sum(line.bytes for line in lossy) / 50 / on_the_line(100_000)
    assert mean == pytest.approx(1.1, abs=0.02)
    assert any(arrival > without + 0.09 for arrival in arrivals)
    assert arrivals == [way(mbits=8, delay=0.05, loss=0.1, seed=s).send(0.0, 100_000) for s in range(50)]


def test_a_broker_delivers_over_both_lines_and_counts_their_bytes():
    clock, heard, profile = VirtualClock(), [], LineProfile(1.0, up=8.0, down=16.0, watts=2.0)
    lines = {name: VirtualLine.of(profile, random.Random(0)) for name in ("a", "b")}
    broker = LinedBroker(clock, NetworkConditions(delay=0.0), 0, lines=lines)
    a = broker.connect("a", lambda item: None, set())
    broker.connect("b", lambda item: heard.append((clock.now, item)), {"to/b"})
    clock.run(lambda: False)
    a.publish("to/b", b"x" * 1000)
    clock.run(lambda: False)
    size = on_the_line(packet_bytes("to/b", 1000))
    assert [when for when, item in heard if isinstance(item, Arrived)] == [
        pytest.approx(size / 1e6 + size / 2e6)
    ]
    puback = on_the_line(4)
    assert (lines["a"].up.bytes, lines["a"].down.bytes) == (size, puback)
    assert (lines["b"].down.bytes, lines["b"].up.bytes) == (size, puback)
    assert lines["a"].joules == pytest.approx(2.0 * (size / 1e6 + puback / 2e6))


def test_an_acknowledgement_ends_the_pause_of_its_direction():
    """Acknowledgements keep the window of a sender open. Without them, the pause is long and the start slow."""
    size = packet_bytes("to/b", 40_000)

    def seconds_of_the_last(receives):
        clock, heard = VirtualClock(), []
        lines = {"a": VirtualLine.of(LineProfile(1.0, 80.0, 80.0, delay=0.05), random.Random(0))}
        broker = LinedBroker(clock, NetworkConditions(delay=0.0), 0, lines=lines)
        a = broker.connect("a", lambda item: None, {"to/a"})
        broker.connect("b", lambda item: heard.append(clock.now), {"to/b"})
        a.publish("to/b", bytes(40_000))
        for tenth in range(1, 30 if receives else 1):
            clock.call_at(0.1 * tenth, lambda: broker.publish("to/a", b"x", False))
        clock.call_at(3.0, lambda: a.publish("to/b", bytes(40_000)))
        clock.run(lambda: False)
        return heard[-1] - 3.0

    at_once = on_the_line(size) / 1e7 + 0.05
    assert seconds_of_the_last(receives=True) == pytest.approx(at_once)
    assert seconds_of_the_last(receives=False) > at_once + 0.09


def test_a_device_that_has_ended_sends_no_acknowledgement():
    clock = VirtualClock()
    lines = {"a": VirtualLine.of(LineProfile(1.0, 8.0, 8.0, delay=1.0), random.Random(0))}
    broker = LinedBroker(clock, NetworkConditions(delay=0.0), 0, lines=lines)
    broker.connect("a", lambda item: None, {"to/a"})
    broker.publish("to/a", b"x", False)
    broker.lose_client("a")
    clock.run(lambda: False)
    assert lines["a"].up.bytes == 0


def test_a_message_arrives_after_the_end_of_its_sender():
    clock, heard = VirtualClock(), []
    lines = {"a": VirtualLine.of(LineProfile(1.0, 8.0, 8.0, delay=1.0), random.Random(0))}
    broker = LinedBroker(clock, NetworkConditions(delay=0.0), 0, lines=lines)
    a = broker.connect("a", lambda item: None, set())
    broker.connect("b", heard.append, {"to/b"})
    a.publish("to/b", b"last words")
    broker.lose_client("a")
    a.publish("to/b", b"never said")
    clock.run(lambda: False)
    assert [item.frame for item in heard if isinstance(item, Arrived)] == [b"last words"]


def test_messages_arrive_in_the_order_in_which_they_were_sent():
    line = way(mbits=100, delay=0.5, loss=0.2, seed=3)
    arrivals = [line.send(0.0, 2000) for _ in range(50)]
    assert arrivals == sorted(arrivals)
    assert len(set(arrivals)) < len(arrivals)  # Some messages wait for a packet that is sent again.


def test_a_lost_packet_of_a_full_line_costs_its_bytes_but_no_round_trip():
    """Only a packet of the last window delays the end. Here, the packets before it are nine tenths of all."""
    sizes = 5_000_000, on_the_line(5_000_000)
    for seed in range(5):
        line = way(mbits=8, delay=0.25, loss=0.01, seed=seed)
        free = way(mbits=8, delay=0.25).send(0.0, sizes[0])
        again = (line.send(0.0, sizes[0]), line.bytes - sizes[1])
        assert again[0] - free == pytest.approx(again[1] / 1e6, abs=0.51)
