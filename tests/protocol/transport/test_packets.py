"""Tests of MQTT 5 packets that are cut out of a stream, against a plain computation of their contents."""

import random
import struct

import pytest

from protofleet.protocol.transport.base import packet_bytes
from protofleet.protocol.transport.packets import (
    Acknowledgement,
    MalformedPacketError,
    Message,
    PacketReader,
    puback,
    publish,
)

SUBACK = b"\x90\x04\x00\x01\x00\x01"
EXPIRY = b"\x05\x02" + struct.pack("!I", 60)  # A property, with the length of all properties before it.


def whole(topic, frame, packet_id):
    return b"".join(publish(topic, frame, False, packet_id))


def with_property(topic, frame):
    body = struct.pack("!H", len(topic)) + topic + EXPIRY + frame
    return b"\x31" + bytes([len(body)]) + body


SIZES = (0, 1, 100, 115, 116, 117, 118, 16_370, 16_371, 16_372, 16_373, 70_000)
FRAMES = [random.Random(size).randbytes(size) for size in SIZES]
STREAM = [
    (SUBACK, SUBACK),
    *((whole(b"a/topic", frame, 0), Message(b"a/topic", frame, 0)) for frame in FRAMES),
    (puback(7), Acknowledgement(7, 0)),
    (b"\x40\x03\x80\x01\x97", Acknowledgement(0x8001, 0x97)),
    *((whole(b"t", frame, 40_000 + i), Message(b"t", frame, 40_000 + i)) for i, frame in enumerate(FRAMES)),
    (with_property(b"t", b"frame"), Message(b"t", b"frame", 0, True)),
    (b"\x40\x04\x00\x02\x10\x00", Acknowledgement(2, 16)),
]


@pytest.mark.parametrize("most", [1, 2, 3, 1000, 65_536, 1 << 20])
def test_a_stream_gives_the_same_packets_for_pieces_of_any_size(most):
    draw, reader = random.Random(most), PacketReader()
    stream, found = memoryview(b"".join(one for one, _ in STREAM)), []
    while stream:
        size = draw.randint(1, most)
        found += reader.read(stream[:size])
        stream = stream[size:]
    assert found == [packet for _, packet in STREAM]


@pytest.mark.parametrize("size", SIZES)
def test_a_packet_has_the_computed_size(size):
    at_qos_1, at_qos_0 = whole(b"a/topic", bytes(size), 9), whole(b"a/topic", bytes(size), 0)
    assert len(at_qos_1) == packet_bytes("a/topic", size)
    assert len(at_qos_0) in (len(at_qos_1) - 2, len(at_qos_1) - 3)  # Its length may be a byte shorter too.


@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\x00",  # No topic.
        b"\x30\x01\x00",
        b"\x30\x03\x00\x10a",  # A topic that ends after the packet.
        b"\x30\x03\x00\x01a",  # No properties.
        b"\x32\x05\x00\x01a\x00\x01",
        b"\x30\x05\x00\x01a\x09x",  # Properties that end after the packet.
        b"\x30\x07\x00\x01a\xff\xff\xff\xff",
        b"\x30\xff\xff\xff\xff\x01",
        b"\x90\x80\x80\x80\x80\x80",
    ],
)
def test_a_malformed_packet_is_refused(packet):
    with pytest.raises(MalformedPacketError):
        PacketReader().read(memoryview(packet))
