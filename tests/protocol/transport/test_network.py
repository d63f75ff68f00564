"""Tests of many connections on one thread: each one works as if it were alone."""

import threading
import time

import pytest

from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.transport import mqtt as over_mqtt
from protofleet.protocol.transport import network as networks
from protofleet.protocol.transport.base import Arrived, Connected, Disconnected
from protofleet.protocol.transport.mqtt import close_all
from protofleet.protocol.transport.network import NetworkThreads
from tests.conftest import PATIENCE
from tests.support.scripted_broker import CONNECT, WELCOME

MANY = 40
PINGREQ = 12


def threads_of(name):
    return sorted(one.name for one in threading.enumerate() if one.name.endswith(name))


@pytest.mark.usefixtures("time_to_leave")
def test_many_connections_share_one_thread_which_ends_with_the_last_connection(broker, peer, federation):
    network = NetworkThreads(federation)
    topics = [f"{federation}/{i}" for i in range(MANY)]
    peers = [peer(t, broker.address, subscriptions=[t], network=network).ready() for t in topics]
    deadline = time.monotonic() + PATIENCE
    while threads_of(federation) != [
        f"mqtt-{federation}"
    ]:  # The thread that opened the last connection is still ending.
        assert time.monotonic() < deadline, threads_of(federation)
        time.sleep(0.01)
    for one, own, other in zip(peers, topics, reversed(topics), strict=True):
        one.mqtt.publish(other, own.encode())
    for one, own, other in zip(peers, topics, reversed(topics), strict=True):
        assert one.frame(own) == other.encode()
    close_all([one.mqtt for one in peers[1:]])
    peers[0].mqtt.publish(topics[0], b"alone")
    assert peers[0].frame(topics[0]) == b"alone"
    peers[0].mqtt.close()
    assert threads_of(federation) == []
    again = peer("again", broker.address, network=network)
    again.next(Connected)


class Unreachable:
    """A connection that cannot be opened and must not be tried again."""

    def open(self):
        return None

    def step(self):
        raise AssertionError("it does not stand")

    def end(self):
        time.sleep(0.002)  # Meanwhile the thread that tried to open it finds no other connection to open.
        return float("inf")


@pytest.fixture(params=["mqtt", "connecting"])
def first_of_its_name_ends_slowly(request):
    """Keep the first thread of a kind alive for 0.05 s after its work is done."""
    slow = set()

    def pause(frame, event, _):
        name = threading.current_thread().name
        ends = event == "return" and frame.f_code is threading.Thread.run.__code__
        if ends and name.startswith(request.param) and name not in slow:
            slow.add(name)
            time.sleep(0.05)  # Longer than a caller needs that does not wait for the thread.

    threading.setprofile(pause)
    yield
    threading.setprofile(None)


@pytest.mark.usefixtures("first_of_its_name_ends_slowly")
@pytest.mark.parametrize("connections", [1, 2])
def test_no_thread_is_left_after_join_of_the_last_connection(connections):
    for i in range(10):
        network = NetworkThreads(f"alone-{i}")
        for _ in range(connections):
            last = network.add(Unreachable())
            assert last.over.wait(10.0)
        assert network.join(last, 10.0)
        assert threads_of(f"alone-{i}") == []


def test_all_connections_return_after_a_restart_of_their_broker(start_mosquitto, peer, federation):
    broker, network = start_mosquitto(), NetworkThreads(federation)
    topics = [f"{federation}/{i}" for i in range(MANY)]
    peers = [peer(t, broker.address, subscriptions=[t], network=network).ready() for t in topics]
    broker.stop()
    for one in peers:
        one.next(Disconnected)
    broker.start()
    for one, topic in zip(peers, topics, strict=True):
        one.ready().mqtt.publish(topic, b"back")
        assert one.frame(topic) == b"back"


def test_a_broker_that_breaks_one_connection_breaks_no_other(scripted, broker, peer, federation):
    network = NetworkThreads(federation)
    good = peer("good", broker.address, subscriptions=["mine"], network=network).ready()
    bad = peer("bad", scripted(*[[WELCOME + b"\xff" * 40, None]] * 9).address, network=network)
    for _ in range(3):
        bad.next(Disconnected)
        good.mqtt.publish("mine", b"on")
        assert good.next(Arrived).frame == b"on"


def test_a_ping_keeps_a_silent_connection_alive(scripted, peer, monkeypatch):
    monkeypatch.setattr(over_mqtt, "KEEPALIVE_SECONDS", 1)
    monkeypatch.setattr(networks, "CHECK_SECONDS", 0.2)
    broker = scripted([WELCOME])
    peer("d", broker.address).next(Connected)
    broker.expect(CONNECT)
    broker.expect(PINGREQ)


@pytest.fixture
def seconds_of_keepalive(monkeypatch):
    monkeypatch.setattr(over_mqtt, "KEEPALIVE_SECONDS", 1)
    monkeypatch.setattr(networks, "CHECK_SECONDS", 0.2)


@pytest.mark.usefixtures("seconds_of_keepalive")
@pytest.mark.parametrize("script", [[WELCOME], []])
def test_a_connection_to_a_silent_broker_is_ended(scripted, peer, script):
    device = peer("d", scripted(script).address)
    lost = device.next(Disconnected)
    assert "it is silent" in lost.reason and not lost.final


class Clock:
    """A replacement of the module `time` that moves only when a test sets `now`; `looks` counts its readings."""

    now, looks = 1000.0, 0

    def monotonic(self):
        self.looks += 1
        return self.now


@pytest.mark.usefixtures("seconds_of_keepalive")
def test_a_connection_that_receives_a_long_frame_is_kept_without_a_ping_reply(scripted, peer, monkeypatch):
    """The test has its own clock, because on a machine that pauses for a second the connection would seem silent."""
    clock = Clock()
    monkeypatch.setattr(over_mqtt, "time", clock)
    broker = scripted([WELCOME])
    device = peer("d", broker.address)
    device.next(Connected)
    broker.say(b"\x30\x0e\x00\x01t\x00")
    for _ in range(10):
        clock.now += 0.35  # The whole frame takes more than three times as long as a silence may last.
        broker.say(b"x")
        seen, deadline = clock.looks, time.monotonic() + PATIENCE
        while (
            clock.looks < seen + 4 and time.monotonic() < deadline
        ):  # The thread has read the byte and the clock.
            time.sleep(0.01)
    assert device.inbox.get(timeout=PATIENCE) == Arrived("t", bytes(b"x" * 10))
    broker.expect(PINGREQ)


@pytest.mark.usefixtures("time_to_leave")
@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_client_that_waits_for_its_next_try_ends_at_once(end, tmp_path, broker, peer, federation):
    """The pause before the next try is longer than the test."""
    with LocalBroker(tmp_path, "mosquitto") as gone:
        address = gone.address
    network = NetworkThreads(federation)
    lonely = peer("lonely", address, network=network, retry_seconds=(60.0, 60.0))
    lonely.next(Disconnected)
    getattr(lonely.mqtt, end)()
    assert threads_of(federation) == []
