"""Read and write the PUBLISH and PUBACK packets of MQTT 5, which are the most frequent packets.

All other packets are returned as bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PINGREQ: Final = b"\xc0\x00"
EXACTLY_ONCE: Final = 2
RETAIN: Final = 1  # the bit in the first byte of a PUBLISH that marks a retained message
# Largest number of bytes in a received packet. The parties of a federation send at most a block of 1 MiB with
# its header.
MOST_RECEIVED: Final = 4 << 20


class MalformedPacketError(ValueError):
    """The error for a packet that no broker should send."""


@dataclass(frozen=True, slots=True)
class Message:
    """The parts of a received PUBLISH. The properties of the PUBLISH are left out."""

    topic: bytes
    payload: bytes
    packet_id: int  # packet id to acknowledge; 0 at QoS 0
    retained: bool = False  # True for a message that the broker retained before we subscribed


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    packet_id: int
    code: int


Packet: TypeAlias = Message | Acknowledgement | bytes


class PacketReader:
    """A reader that divides a stream into packets and copies each payload once."""

    def __init__(self) -> None:
        self._rest = bytearray()  # the received part of an incomplete packet

    def read(self, data: memoryview) -> list[Packet]:
        """Return the packets that are complete with these bytes."""
        if not self._rest:
            found, used = complete(data)
            self._rest += data[used:]
            return found
        self._rest += data
        with memoryview(self._rest) as stream:
            found, used = complete(stream)
        del self._rest[:used]
        return found


def complete(stream: memoryview) -> tuple[list[Packet], int]:
    """Return the complete packets at the start of a stream, and the number of their bytes."""
    found: list[Packet] = []
    at = 0
    while (bounds := bounds_of(stream, at)) is not None:
        start, stop = bounds
        found.append(packet_of(stream, at, start, stop))
        at = stop
    return found, at


def bounds_of(stream: memoryview, at: int) -> tuple[int, int] | None:
    """Return the bounds of the body of the packet that begins at `at`, or None if the packet is not complete."""
    length = shift = 0
    for place in range(at + 1, min(at + 5, len(stream))):
        byte = stream[place]
        length |= (byte & 127) << shift
        if byte < 128:
            start = place + 1
            if length > MOST_RECEIVED:
                raise MalformedPacketError(
                    f"the packet has {length:,} bytes, but at most {MOST_RECEIVED:,} are allowed by our CONNECT"
                )
            return (start, start + length) if start + length <= len(stream) else None
        shift += 7
    if shift == 28:
        raise MalformedPacketError("the length field of a packet has more than four bytes")
    return None


def packet_of(stream: memoryview, at: int, start: int, stop: int) -> Packet:
    kind, qos = stream[at] & 0xF0, stream[at] >> 1 & 3
    if kind == PUBLISH and qos < EXACTLY_ONCE:
        return message_of(stream[start:stop], qos, bool(stream[at] & RETAIN))
    if kind == PUBACK and stop - start >= 2:
        (packet_id,) = struct.unpack_from("!H", stream, start)
        return Acknowledgement(packet_id, stream[start + 2] if stop - start > 2 else 0)
    return bytes(stream[at:stop])


def message_of(body: memoryview, qos: int, retained: bool) -> Message:
    try:
        (length,) = struct.unpack_from("!H", body)
        at, packet_id = 2 + length, 0
        if qos:
            (packet_id,) = struct.unpack_from("!H", body, at)
            at += 2
        # The properties begin with their length in bytes. In a packet, one byte comes before the length. So
        # `bounds_of` can read the properties like a packet that begins one byte earlier.
        properties = bounds_of(body, at - 1)
    except struct.error:
        properties = None
    if properties is None:
        raise MalformedPacketError(f"a PUBLISH of {len(body)} bytes ends before its payload begins")
    return Message(bytes(body[2 : 2 + length]), bytes(body[properties[1] :]), packet_id, retained)


def publish(topic: bytes, frame: bytes, retain: bool, packet_id: int) -> tuple[bytes, bytes]:
    """Return a PUBLISH without properties, in two pieces; with `packet_id` 0 it has QoS 0."""
    numbered = struct.pack("!H", packet_id) if packet_id else b""
    head = struct.pack("!H", len(topic)) + topic + numbered + b"\0"
    first = PUBLISH | (2 if packet_id else 0) | retain
    return bytes([first]) + length_bytes(len(head) + len(frame)) + head, frame


def puback(packet_id: int) -> bytes:
    return struct.pack("!BBH", PUBACK, 2, packet_id)


def length_bytes(length: int) -> bytes:
    found = bytearray()
    while length > 127:
        found.append(length & 127 | 128)
        length >>= 7
    return bytes(found) + bytes([length])
