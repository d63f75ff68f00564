"""Tests with a scripted broker of the packets that brokers send only in rare cases."""

import logging
import queue
import threading

import pytest
from paho.mqtt.client import Client

from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Will
from protofleet.protocol.transport.mqtt import Mqtt
from tests.support.scripted_broker import (
    CONNECT,
    DISCONNECT,
    PUBLISH,
    SUBSCRIBE,
    WELCOME,
    connack,
    disconnect,
    max_packet,
    packet_id,
    puback,
    receive_max,
)

FOR_GOOD = [(135, "ACL"), (142, "another process"), (149, "max_packet_size"), (152, "administrator")]
REFUSED = [(132, "MQTT 5"), (133, "client id"), (134, "password"), (135, "ACL"), (138, "banned")]


@pytest.mark.parametrize(("code", "words"), FOR_GOOD)
def test_a_client_does_not_reconnect_after_a_final_disconnect(scripted, peer, code, words):
    broker = scripted([WELCOME, disconnect(code)])
    device = peer("d", broker.address)
    lost = device.next(Disconnected)
    assert lost.final and words in lost.reason and f"({code})" in lost.reason
    broker.expect(CONNECT)
    with pytest.raises(queue.Empty):
        broker.expect(CONNECT, seconds=0.5)  # Longer than the longest pause before a second try.


@pytest.mark.parametrize(("code", "words"), REFUSED)
def test_a_client_does_not_reconnect_after_a_final_refusal(scripted, peer, code, words):
    broker = scripted([connack(code)], [WELCOME])
    lost = peer("d", broker.address).next(Disconnected)
    assert lost.final and words in lost.reason and f"({code})" in lost.reason
    broker.expect(CONNECT)
    with pytest.raises(queue.Empty):
        broker.expect(CONNECT, seconds=0.5)  # Longer than the longest pause before a second try.


def test_the_reason_names_mqtt_5_if_the_broker_supports_only_mqtt_3(scripted, peer):
    lost = peer("d", scripted([b"\x20\x02\x00\x01"]).address).next(Disconnected)
    assert lost.final and "MQTT 5" in lost.reason


@pytest.mark.parametrize(
    "bad_day", [[connack(136)], [connack(137)], [WELCOME, disconnect(139)], [WELCOME, None], [None]]
)
def test_a_client_reconnects_after_a_temporary_failure(scripted, peer, bad_day):
    broker = scripted(bad_day, bad_day, [WELCOME])
    device = peer("d", broker.address)
    for _ in range(2):
        lost = device.next(Disconnected)
        assert not lost.final and str(broker.address) in lost.reason
    device.next(Connected)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x20\x03\x00\x63\x00",  # A CONNACK with a code that does not exist.
        WELCOME + b"\x00\x00",  # A packet of a type that does not exist.
        WELCOME + b"\x30\x05\xff\xff",  # A PUBLISH whose topic ends after the packet.
        WELCOME + b"\x30\x03\x00\x10a",
        WELCOME + b"\x90\x01\x00",
        WELCOME + b"\xff\xff\xff\xff\xff\xff",
        WELCOME + b"\x40\x03\x00\x01\xfe",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_malformed_bytes_end_only_the_connection(scripted, peer, nonsense, caplog):
    broker = scripted([nonsense, None], [WELCOME])
    device = peer("d", broker.address, subscriptions=["x"])
    device.next(Disconnected, lambda item: not item.final)
    broker.expect(CONNECT)
    broker.expect(CONNECT)
    device.next(Connected)


def test_an_error_inside_paho_ends_only_the_connection(scripted, peer, monkeypatch, caplog):
    broker = scripted([WELCOME])
    device = peer("d", broker.address)
    device.next(Connected)
    with monkeypatch.context() as patch:
        patch.setattr(Client, "loop_read", lambda client: 1 // 0)
        broker.say(b"\xd0\x00")
        assert "the connection broke (ZeroDivisionError" in device.next(Disconnected).reason
    device.next(Connected)


def test_a_frame_whose_topic_is_not_utf8_is_dropped_and_the_next_arrives(scripted, peer, caplog):
    bad, good = b"\x30\x05\x00\x01\xff\x00x", b"\x30\x05\x00\x01t\x00x"
    device = peer("d", scripted([WELCOME + bad + good]).address)
    device.next(Connected)
    assert device.inbox.get(timeout=20) == Arrived("t", b"x")


def test_a_client_reports_and_obeys_the_limits_of_the_broker(scripted, peer):
    broker = scripted([connack(properties=max_packet(100) + receive_max(3))])
    device = peer("d", broker.address)
    assert device.next(Connected) == Connected(max_packet=100, receive_max=3)
    device.mqtt.publish("t", bytes(100))
    assert "the broker accepts at most 100" in device.next(Denied).reason
    for n in range(10):
        device.mqtt.publish("t", bytes([n]))
    seen = [broker.expect(PUBLISH) for _ in range(3)]
    with pytest.raises(queue.Empty):
        broker.heard.get(timeout=0.3)  # The window is full.
    for _ in range(7):
        broker.say(puback(packet_id(seen[-3])))
        seen.append(broker.expect(PUBLISH))
    assert [packet[-1] for packet in seen] == list(range(10))


def test_a_broker_that_states_no_limits_has_the_default_limits_of_mqtt(scripted, peer):
    assert peer("d", scripted([WELCOME]).address).next(Connected) == Connected(268_435_455, 65_535)


def test_a_negative_acknowledgement_is_reported_with_its_topic(scripted, peer):
    broker = scripted([WELCOME])
    device = peer("d", broker.address)
    device.next(Connected)
    for topic, code in (("fine", 0), ("unheard", 16), ("quota", 151)):
        device.mqtt.publish(topic, b"x")
        broker.say(puback(packet_id(broker.expect(PUBLISH)), code))
    assert device.next(Denied) == Denied("quota", "the broker did not pass it on: Quota exceeded (151)")
    assert device.inbox.empty()


def test_a_refused_subscription_is_reported_with_its_topic(scripted, peer):
    broker = scripted([WELCOME])
    device = peer("d", broker.address, subscriptions=["a"])
    device.next(Connected)
    device.mqtt.subscribe("b")
    for topic in ("a", "b"):
        asked = broker.expect(SUBSCRIBE)
        assert asked[5:-1] == topic.encode()
        broker.say(b"\x90\x04" + asked[:2] + b"\x00\x87")
        denied = device.next(Denied)
        assert denied.topic == topic and "Not authorized (135)" in denied.reason


def test_a_publish_without_a_connection_is_dropped(scripted, peer):
    broker = scripted([], [WELCOME])
    device = peer("d", broker.address)
    broker.expect(CONNECT)  # It gets no answer before the publish; otherwise the second try might come first.
    device.mqtt.publish("t", b"dropped")
    broker.say(connack(136))
    assert isinstance(device.inbox.get(timeout=20), Disconnected)
    assert isinstance(device.inbox.get(timeout=20), Connected)
    device.mqtt.publish("t", b"sent")
    assert broker.expect(PUBLISH).endswith(b"sent")


def test_an_unacknowledged_frame_is_not_sent_again_after_a_reconnect(scripted, peer):
    broker = scripted([WELCOME], [WELCOME])
    device = peer("d", broker.address)
    device.next(Connected)
    device.mqtt.publish("t", b"old")
    broker.expect(PUBLISH)
    broker.say(disconnect(139))
    device.next(Connected)
    device.mqtt.publish("t", b"new")
    assert broker.expect(PUBLISH).endswith(b"new")


class Brittle(queue.SimpleQueue):
    def put(self, item):
        if item == Arrived("echo", b"bad"):
            raise RuntimeError("an inbox should not do this")
        super().put(item)


def test_a_receive_queue_that_raises_does_not_stop_the_network_thread(broker, federation, caplog):
    inbox = Brittle()
    with caplog.at_level(logging.ERROR):
        mqtt = Mqtt(f"{federation}.d", broker.address, inbox, subscriptions=["echo"])
        mqtt.connect()
        assert isinstance(inbox.get(timeout=20), Connected)
        mqtt.publish("echo", b"bad")
        mqtt.publish("echo", b"good")
        assert inbox.get(timeout=20) == Arrived("echo", b"good")
        mqtt.close()
    assert "an inbox should not do this" in caplog.text


@pytest.mark.usefixtures("time_to_leave")
def test_close_sends_a_disconnect_and_kill_does_not(scripted, peer):
    for end, goodbyes in ((Mqtt.close, 1), (Mqtt.kill, 0)):
        broker = scripted([WELCOME])
        device = peer(end.__name__, broker.address, will=Will("w", b"gone"))
        device.next(Connected)
        end(device.mqtt)
        assert not [one for one in threading.enumerate() if one.name.endswith(device.name)], (
            "its threads are over"
        )
        device.mqtt.close()  # A second close does no harm.
        broker.expect(CONNECT)
        heard = []
        while broker.connected or not broker.heard.empty():
            try:
                heard.append(broker.heard.get(timeout=0.05)[0])
            except queue.Empty:
                continue
        assert heard.count(DISCONNECT) == goodbyes


def test_a_client_that_may_return_reconnects_after_a_takeover_of_its_name(scripted, peer):
    """A coordinator learns from messages under its name which of two processes is the later one; a device cannot."""
    broker = scripted([WELCOME, disconnect(142)], [WELCOME])
    coordinator = peer("c", broker.address, returns=lambda: True)
    lost = coordinator.next(Disconnected)
    assert not lost.final and "another process" in lost.reason
    coordinator.next(Connected)


@pytest.mark.parametrize("says", ["taken over", "nothing"])
def test_a_client_without_retries_after_a_cut_waits_for_a_call_of_connect(scripted, peer, says):
    broker = scripted([WELCOME, disconnect(142)] if says == "taken over" else [WELCOME, None], [WELCOME])
    coordinator = peer("c", broker.address, retries_after_cut=False)
    lost = coordinator.next(Disconnected)
    assert (lost.final, lost.cut, lost.taken_over) == (False, True, says == "taken over")
    with pytest.raises(queue.Empty):
        coordinator.inbox.get(timeout=1.0)
    coordinator.mqtt.connect()
    coordinator.next(Connected)
