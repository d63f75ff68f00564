"""Tests of a broker that sends one packet of 100 MB: its header ends the connection before it takes memory."""

import queue
import resource
import socket
import threading

import pytest

from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import Connected, Disconnected
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.transport.packets import (
    MOST_RECEIVED,
    MalformedPacketError,
    PacketReader,
    length_bytes,
    publish,
)

HUGE = 100_000_000
MAXIMUM_PACKET_SIZE = b"\x27" + MOST_RECEIVED.to_bytes(4, "big")  # As a property of CONNECT.


def flood(server, heard):
    """Accept a client and send it one huge PUBLISH packet."""
    connection, _ = server.accept()
    with connection:
        heard["connect"] = connection.recv(4096)
        connection.sendall(b"\x20\x03\x00\x00\x00\x30" + length_bytes(HUGE))
        heard["sent"] = 0
        try:
            while heard["sent"] < HUGE:
                heard["sent"] += connection.send(bytes(1 << 16))
        except OSError:
            pass


def test_a_packet_of_100_mb_ends_the_connection_at_its_header():
    """A client that kept and copied the whole packet would need 200 MB more memory."""
    heard, inbox = {}, queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = threading.Thread(target=flood, args=(server, heard))
        broker.start()
        client = Mqtt("d", BrokerAddress("127.0.0.1", server.getsockname()[1]), inbox)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        client.connect()
        try:
            ended = inbox.get(timeout=60)
            if isinstance(ended, Connected):
                ended = inbox.get(timeout=60)
        finally:
            client.kill()
            broker.join(60)
    assert isinstance(ended, Disconnected) and not ended.final
    assert "the packet has 100,000,000 bytes, but at most 4,194,304 are allowed" in ended.reason
    assert heard["sent"] < HUGE / 4 and MAXIMUM_PACKET_SIZE in heard["connect"]
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < HUGE / 4


def test_a_packet_at_the_limit_is_accepted_and_one_byte_more_is_refused():
    head, frame = publish(b"t", bytes(MOST_RECEIVED - 4), False, 0)
    (message,) = PacketReader().read(memoryview(head + frame))
    assert len(message.payload) == MOST_RECEIVED - 4
    head, frame = publish(b"t", bytes(MOST_RECEIVED - 3), False, 0)
    with pytest.raises(MalformedPacketError, match=r"4,194,305 bytes, but at most 4,194,304"):
        PacketReader().read(memoryview(head))
