"""A broker that was taken over: it has the broker's key, and forwards to an intact Mosquitto.

For each party it is the real broker. It keeps all frames in both directions, and may drop them. It may send
any frame to a party, on any topic, at any time and any number of times. Only the signatures and seals of the
parties protect them against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from protofleet.protocol.link.standby import standby_address
from protofleet.protocol.transport.address import BrokerAddress, TlsFiles
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from tests.hostile import wire

CONNECT, CONNACK, PUBLISH, PUBACK = 1, 2, 3, 4
MAXIMUM_PACKET_SIZE = 0x27
# The lengths in bytes of the properties of a CONNACK that are not strings.
LENGTHS = {0x11: 5, 0x13: 3, 0x21: 3, 0x22: 3, 0x24: 2, 0x25: 2, 0x27: 5, 0x28: 2, 0x29: 2, 0x2A: 2}
HANG_UPS = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError)


@dataclass(frozen=True)
class Frame:
    """One PUBLISH packet. `party` sends it to the broker or, with `down`, receives it from the broker."""

    party: str
    down: bool
    topic: str
    data: bytes
    retain: bool
    at: float = field(default_factory=time.monotonic)

    @property
    def header(self) -> wire.Header:
        """Return the header of an envelope, as far as it is readable; return an empty one for a block."""
        return wire.header_of(self.data) if self.data[:3] == wire.ENVELOPE else {}

    @property
    def kind(self) -> str:
        return str(self.header.get("kind", "block"))


@dataclass
class Line:
    """The connection of one party, and the connection to the broker in the name of that party."""

    party: str
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter


class TakenOver:
    """A hostile broker. `passes` decides for each frame whether it is forwarded.

    The sender of a dropped frame gets an acknowledgement too.
    """

    def __init__(self, broker: BrokerAddress, tls: Callable[[str], TlsFiles]) -> None:
        self._broker, self._tls = broker, tls
        self.passes: Callable[[Frame], bool] = lambda frame: True
        # Changes a packet, other than a PUBLISH, on its way from the broker to a party.
        self.alters: Callable[[str, bytes], bytes] = lambda party, packet: packet
        self.seen: list[Frame] = []
        self.wills: dict[str, Frame] = {}  # The newest will of each party.
        self._lines: dict[str, Line] = {}
        self._loop = asyncio.new_event_loop()
        made = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=server_side(tls("broker")))
        self._server = self._loop.run_until_complete(made)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> TakenOver:
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(end_all(self._server), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def tell(self, party: str, topic: str, data: bytes, retain: bool = False) -> None:
        """Send a frame to one party, independently of the real broker."""
        self._loop.call_soon_threadsafe(self._tell, party, packed(topic, data, retain))

    def say(self, party: str, topic: str, data: bytes, retain: bool = False) -> None:
        """Send a frame to the real broker in the name of a party, as far as the broker's rules allow."""
        self._loop.call_soon_threadsafe(self._say, party, packed(topic, data, retain))

    def cut(self, party: str) -> None:
        """Break the connection of a party, so that the real broker publishes its will."""
        self._loop.call_soon_threadsafe(self._cut, party)

    def frames(self, kind: str, sender: str = "", down: bool | None = None) -> list[Frame]:
        """Return the seen frames of a kind, oldest first."""
        return [
            f for f in list(self.seen)
            if f.kind == kind and (not sender or f.header["sender"] == sender) and (down is None or f.down == down)
        ]  # fmt: skip

    def _tell(self, party: str, packet: bytes) -> None:
        if line := self._lines.get(party):
            line.near.write(packet)

    def _say(self, party: str, packet: bytes) -> None:
        if line := self._lines.get(party):
            line.far.write(packet)

    def _cut(self, party: str) -> None:
        if line := self._lines.get(party):
            for end in (line.far, line.near):
                end.transport.abort()

    def _tls_of(self, party: str) -> TlsFiles:
        """Return the files of a party; the standby has another certificate for the key of the coordinator."""
        if party != STANDBY:
            return self._tls(party)
        address = standby_address(BrokerAddress(tls=self._tls(COORDINATOR)))
        assert address is not None and address.tls is not None
        return address.tls

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        party = _common_name(near)
        context = _client_side(self._tls_of(party))
        try:
            far_reader, far = await asyncio.open_connection(self._broker.host, self._broker.port, ssl=context)
        except HANG_UPS:
            near.transport.abort()
            return
        line = self._lines[party] = Line(party, near, far)
        down = asyncio.ensure_future(self._pass(far_reader, near, far, line, True))
        await self._pass(reader, far, near, line, False)
        down.cancel()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter, line: Line,
        down: bool,
    ) -> None:  # fmt: skip
        with contextlib.suppress(*HANG_UPS):
            while True:
                packet, start = await read_packet(source)
                if down and packet[0] >> 4 != PUBLISH:
                    packet = self.alters(line.party, packet)
                if packet[0] >> 4 == CONNECT and (will := will_in(packet, start)):
                    self.wills[line.party] = Frame(line.party, False, *will)
                if packet[0] >> 4 == PUBLISH and not self._passes(line, packet, start, down):
                    back.write(acknowledgement(packet, start))
                else:
                    sink.write(packet)
                await sink.drain()
        sink.close()

    def _passes(self, line: Line, packet: bytes, start: int, down: bool) -> bool:
        topic, data = topic_and_frame(packet, start)
        frame = Frame(line.party, down, topic, data, bool(packet[0] & 1))
        self.seen.append(frame)
        return self.passes(frame)


async def end_all(server: asyncio.Server) -> None:
    """End the server and every connection.

    asyncio logs an error for a task that is freed before its end.
    """
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def packed(topic: str, data: bytes, retain: bool = False) -> bytes:
    """Return a PUBLISH packet of quality of service 0, which needs no packet number."""
    rest = struct.pack("!H", len(topic.encode())) + topic.encode() + b"\0" + data
    return bytes([PUBLISH << 4 | int(retain)]) + _as_varint(len(rest)) + rest


def topic_and_frame(packet: bytes, start: int) -> tuple[str, bytes]:
    (length,) = struct.unpack_from("!H", packet, start)
    at = start + 2 + length
    topic = packet[start + 2 : at].decode()
    properties, at = varint(packet, at + 2 * bool(packet[0] >> 1 & 3))
    return topic, packet[at + properties :]


def acknowledgement(packet: bytes, start: int) -> bytes:
    """Return the acknowledgement of a PUBLISH packet, or no bytes if the packet wants none."""
    (length,) = struct.unpack_from("!H", packet, start)
    at = start + 2 + length
    return bytes([PUBACK << 4, 2]) + packet[at : at + 2] if packet[0] >> 1 & 3 else b""


def will_in(packet: bytes, start: int) -> tuple[str, bytes, bool] | None:
    """Return the topic and the frame of the will in a CONNECT packet, and whether it is retained."""
    flags = packet[start + 7]
    properties, at = varint(packet, start + 10)
    _, at = _piece(packet, at + properties)  # This piece is the client id.
    if not flags & 4:
        return None
    properties, at = varint(packet, at)
    topic, at = _piece(packet, at + properties)
    data, _ = _piece(packet, at)
    return topic.decode(), data, bool(flags & 32)


async def read_packet(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """Read one whole MQTT packet, and return it with the place where its fixed header ends."""
    head = await reader.readexactly(2)
    while head[-1] & 128:
        head += await reader.readexactly(1)
    length, start = varint(head, 1)
    return head + await reader.readexactly(length), start


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while True:
        value, low = value >> 7, value & 127
        found.append(low | 128 * bool(value))
        if not value:
            return bytes(found)


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("!H", data, at)
    return data[at + 2 : at + 2 + length], at + 2 + length


def _common_name(writer: asyncio.StreamWriter) -> str:
    subject = writer.get_extra_info("peercert")["subject"]
    return str(dict(pair for row in subject for pair in row)["commonName"])


def server_side(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _client_side(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.check_hostname = False
    return context


def of_packets_up_to(size: int, connack: bytes) -> bytes:
    """Return a CONNACK of success with this Maximum Packet Size."""
    if connack[0] >> 4 != CONNACK:
        return connack
    _, start = varint(connack, 1)
    length, at = varint(connack, start + 2)
    kept, end = b"", at + length
    while at < end:
        text = 3 + struct.unpack_from("!H", connack, at + 1)[0] if connack[at] not in LENGTHS else 0
        stop = at + LENGTHS.get(connack[at], text)
        kept += connack[at:stop] if connack[at] != MAXIMUM_PACKET_SIZE else b""
        at = stop
    kept += struct.pack("!BI", MAXIMUM_PACKET_SIZE, size)
    return bytes([connack[0], 3 + len(kept), *connack[start : start + 2], len(kept)]) + kept
