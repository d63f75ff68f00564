"""Tests of frames over real brokers."""

import queue
import random
import time
from collections.abc import Callable

import pytest
from paho.mqtt.client import CallbackAPIVersion, Client, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Will, packet_bytes
from tests.conftest import PATIENCE


def test_frames_arrive_unchanged_and_in_order(any_broker, peer, federation):
    topic = f"{federation}/up/d1"
    draw = random.Random(1)
    sizes = [0, 1, 126, 127, 128, 16_383, 16_384, 65_536, *(draw.randrange(3000) for _ in range(300))]
    frames = [draw.randbytes(size) for size in sizes]
    receiver = peer("c", any_broker.address, subscriptions=[topic]).ready()
    sender = peer("d1", any_broker.address).ready()
    for frame in frames:
        sender.mqtt.publish(topic, frame)
    assert [receiver.frame(topic) for _ in frames] == frames


def test_more_frames_than_a_socket_holds_arrive_in_order_at_qos_0(any_broker, peer, federation):
    topic = f"{federation}/up/d1"
    receiver = peer("c", any_broker.address, subscriptions=[topic]).ready()
    sender = peer("d1", any_broker.address).ready()
    frames = [bytes([n]) * 65_536 for n in range(200)]
    for frame in frames:
        sender.mqtt.publish(topic, frame, qos=0)
    assert sender.mqtt.flush(PATIENCE)
    assert [receiver.frame(topic) for _ in frames] == frames


@pytest.mark.parametrize("qos", [0, 1])
def test_a_frame_arrives_at_the_qos_at_which_it_was_published(start_mosquitto, peer, federation, qos):
    broker = start_mosquitto()
    topic, heard = f"{federation}/up/d1", queue.SimpleQueue()
    other = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    other.on_message = lambda _c, _d, message: heard.put(message.qos)
    other.on_subscribe = lambda *_: heard.put("subscribed")
    other.on_connect = lambda *_: other.subscribe(topic, 1)
    other.connect(broker.address.host, broker.address.port)
    other.loop_start()
    assert heard.get(timeout=PATIENCE) == "subscribed"
    peer("d1", broker.address).ready().mqtt.publish(topic, b"frame", qos=qos)
    assert heard.get(timeout=PATIENCE) == qos
    other.disconnect()
    other.loop_stop()


def test_frames_of_a_topic_arrive_only_between_subscribe_and_unsubscribe(any_broker, peer, federation):
    one, two = f"{federation}/one", f"{federation}/two"
    both = peer("p", any_broker.address, subscriptions=[two]).ready()
    both.mqtt.publish(one, b"before")
    both.mqtt.subscribe(one)
    both.mqtt.publish(one, b"during")
    assert both.frame(one) == b"during"
    both.mqtt.unsubscribe(one)
    both.mqtt.publish(one, b"after")
    both.mqtt.publish(two, b"end")
    assert both.next(Arrived) == Arrived(two, b"end")


@pytest.mark.parametrize("how", [LocalBroker.stop, LocalBroker.kill])
def test_all_subscriptions_work_again_after_a_restart_of_the_broker(how, start_mosquitto, peer, federation):
    broker = start_mosquitto()
    given, added = f"{federation}/given", f"{federation}/added"
    device = peer("d", broker.address, subscriptions=[given]).ready()
    device.mqtt.subscribe(added)
    how(broker)
    lost = device.next(Disconnected)
    assert not lost.final and str(broker.address) in lost.reason
    device.mqtt.publish(given, b"into the void")
    broker.start()
    device.ready()
    for topic in (given, added):
        device.mqtt.publish(topic, b"again")
        assert device.frame(topic) == b"again"


def test_no_stale_frame_is_sent_after_a_reconnect(start_mosquitto, peer, federation):
    broker = start_mosquitto()
    topic = f"{federation}/x"
    device = peer("d", broker.address, subscriptions=[topic]).ready()
    broker.kill()
    for _ in range(100):
        device.mqtt.publish(topic, b"stale")
    device.next(Disconnected)
    device.mqtt.publish(topic, b"stale")
    broker.start()
    device.ready()
    device.mqtt.publish(topic, b"fresh")
    assert device.frame(topic) == b"fresh"


def test_a_missing_broker_is_reported_with_its_address_and_tried_until_it_starts(tmp_path, broker, peer):
    later = LocalBroker(tmp_path, "mosquitto")
    with later:
        address = later.address
    device = peer("d", address)
    lost = device.next(Disconnected)
    assert lost.reason.startswith(f"{address}: nothing listens there (Connection refused)") and not lost.final
    with later:
        device.ready()


def test_a_will_is_published_when_the_connection_is_lost_and_is_retained(any_broker, peer, federation):
    topic = f"{federation}/dev/d/state"
    watcher = peer("w", any_broker.address, subscriptions=[topic]).ready()
    device = peer("d", any_broker.address, will=Will(topic, b"offline")).ready()
    device.mqtt.publish(topic, b"online", retain=True)
    assert watcher.frame(topic) == b"online"
    device.mqtt.kill()
    assert watcher.frame(topic) == b"offline"
    assert peer("late", any_broker.address, subscriptions=[topic]).frame(topic) == b"offline"


def test_a_birth_is_retained_for_later_subscribers(any_broker, peer, federation):
    topic = f"{federation}/dev/d/state"
    device = peer("d", any_broker.address, subscriptions=[topic]).ready()
    device.mqtt.publish(topic, b"online", retain=True)
    device.frame(topic)
    assert peer("late", any_broker.address, subscriptions=[topic]).frame(topic) == b"online"


@pytest.mark.usefixtures("time_to_leave")
def test_a_client_that_closes_sends_all_its_frames_and_no_will(any_broker, peer, federation):
    topic, will = f"{federation}/up/d", f"{federation}/dev/d/state"
    watcher = peer("w", any_broker.address, subscriptions=[topic, will]).ready()
    device = peer("d", any_broker.address, will=Will(will, b"offline")).ready()
    frames = [bytes([n]) * 20_000 for n in range(200)]
    for frame in frames:
        device.mqtt.publish(topic, frame)
    device.mqtt.close()
    assert [watcher.frame(topic) for _ in frames] == frames
    watcher.mqtt.publish(will, b"no will came before this")
    assert watcher.frame(will) == b"no will came before this"


@pytest.mark.usefixtures("time_to_leave")
def test_a_session_keeps_frames_for_a_disconnected_device(any_broker, peer, federation):
    topic = f"{federation}/down/d"
    session = {"clean_start": False, "session_seconds": 60}
    peer("d", any_broker.address, subscriptions=[topic], **session).ready().mqtt.close()
    other = peer("c", any_broker.address).ready()
    other.mqtt.publish(topic, b"meanwhile")
    other.mqtt.close()
    assert peer("d", any_broker.address, **session).frame(topic) == b"meanwhile"


def test_one_of_two_clients_with_the_same_name_gets_the_reason(any_broker, peer):
    # Mosquitto 2.1 sends code 142, and the older client stops. Older brokers send no code, and both return in turn.
    first = peer("twin", any_broker.address)
    peer("twin", any_broker.address)
    lost = first.next(Disconnected, lambda item: item.final or "another process" in item.reason)
    assert "another process" in lost.reason


def test_a_publish_against_the_acl_is_denied_and_other_topics_still_work(tmp_path, start_mosquitto, peer):
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite echo/#\ntopic readwrite free/#\n")
    rules.chmod(0o600)
    broker = start_mosquitto(f"acl_file {rules}")
    device = peer("d", broker.address, subscriptions=["free/x"]).ready()
    device.mqtt.publish("forbidden/x", b"no")
    assert "Not authorized (135)" in device.next(Denied, lambda item: item.topic == "forbidden/x").reason
    heard = None
    # Mosquitto 2.0.11 closes the connection after it has denied something.
    while not isinstance(heard, Arrived):
        device.mqtt.publish("free/x", b"yes")
        heard = device.inbox.get(timeout=PATIENCE)
    assert heard == Arrived("free/x", b"yes")


@pytest.mark.usefixtures("time_to_leave")
def test_a_publish_without_subscribers_is_not_denied(broker, peer, federation):
    device = peer("d", broker.address).ready()
    device.mqtt.publish(f"{federation}/nobody", b"x")  # Mosquitto acknowledges with code 16.
    device.mqtt.close()
    assert device.inbox.empty()


def test_the_client_denies_a_frame_above_the_packet_limit_and_sends_the_largest(broker, peer, federation):
    topic = f"{federation}/x"
    device = peer("d", broker.address, subscriptions=[topic])
    limit = device.next(Connected).max_packet
    largest = next(size for size in range(limit, 0, -1) if packet_bytes(topic, size) <= limit)
    size = packet_bytes(topic, largest + 1)
    device.mqtt.publish(topic, bytes(largest + 1))
    assert device.next(Denied) == Denied(
        topic, f"the packet has {size} bytes, but the broker accepts at most {limit}"
    )
    device.mqtt.publish(topic, bytes(largest))
    assert len(device.frame(topic)) == largest


def test_frames_with_each_length_of_a_packet_header_arrive_complete(any_broker, peer, federation):
    topic = f"{federation}/\u00e9"
    receiver = peer("r", any_broker.address, subscriptions=[topic]).ready()
    sender = peer("s", any_broker.address).ready()
    sizes = [0, 1, 100, 130, 16_400, 65_536]
    for size in sizes:
        sender.mqtt.publish(topic, bytes(size))
    assert [len(receiver.frame(topic)) for _ in sizes] == sizes


class Sys:
    """A client that records the counters of a Mosquitto and counts the frames that it delivers on `topics`.

    It listens at QoS 0, so it sends no packet that would be counted. A round of counters begins with `uptime`, and
    the changed counters follow it. So all values are from the same round only when the next round has begun.
    """

    def __init__(self, address: BrokerAddress, topics: str) -> None:
        self.values: dict[str, bytes] = {}
        # The rounds that began since the client listens; a new subscriber gets the last round as retained messages.
        self.rounds = 0
        self.heard = 0
        self._client = Client(CallbackAPIVersion.VERSION2, "sys", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_message = self._note
        self._client.connect(address.host, address.port)
        self._client.subscribe([(topics, SubscribeOptions(0)), ("$SYS/broker/#", SubscribeOptions(0))])
        self._client.loop_start()
        # When the counters have arrived, both subscriptions are active.
        self._wait(lambda: "uptime" in self.values, "retained counters")

    def _note(self, _client, _data, message) -> None:
        if not message.topic.startswith("$SYS/"):
            self.heard += 1
            return
        name = message.topic.removeprefix("$SYS/broker/")
        self.values[name] = message.payload
        self.rounds += name == "uptime" and not message.retain

    def after(self, frames: int, *names: str) -> list[int]:
        """Return counters of the broker from a round of counters that began after `frames` frames had arrived."""
        self._wait(lambda: self.heard >= frames, f"{frames} frames")
        last = self.rounds
        self._wait(lambda: self.rounds >= last + 2, "two rounds of counters")
        return [int(self.values[name]) for name in names]

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE} s"
            time.sleep(0.02)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def test_the_computed_packet_sizes_are_the_sizes_that_mosquitto_counts(start_mosquitto, peer, federation):
    broker, topic = start_mosquitto(sys_seconds=1), f"{federation}/up/\u00e9"
    sys = Sys(broker.address, topic)
    device = peer("d", broker.address).ready()
    device.mqtt.publish(topic, b"all that came with the connection is counted before this")
    # Frames, their bytes without topic and header, and the bytes of all received packets.
    names = "publish/messages/received", "publish/bytes/received", "bytes/received"
    before = sys.after(1, *names)
    sizes = [0, 1, 99, 127, 128, 16_384, 65_536] * 3
    for size in sizes:
        device.mqtt.publish(topic, bytes(size))
    after = sys.after(1 + len(sizes), *names)
    sys.close()
    packets = sum(packet_bytes(topic, size) for size in sizes)
    assert [now - then for now, then in zip(after, before)] == [len(sizes), sum(sizes), packets]
