"""A broker that sends the packets that a test gives it, for packets that real brokers send only in rare cases."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from protofleet.protocol.transport.address import BrokerAddress

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, DISCONNECT = 1, 3, 4, 8, 14
WELCOME = b"\x20\x03\x00\x00\x00"


def connack(code: int = 0, properties: bytes = b"") -> bytes:
    return bytes([0x20, 3 + len(properties), 0, code, len(properties)]) + properties


def max_packet(size: int) -> bytes:
    return b"\x27" + struct.pack("!I", size)


def receive_max(count: int) -> bytes:
    return b"\x21" + struct.pack("!H", count)


def disconnect(code: int) -> bytes:
    return bytes([0xE0, 1, code])


def puback(packet_id: int, code: int = 0) -> bytes:
    return struct.pack("!BBHB", 0x40, 3, packet_id, code)


def packet_id(publish: bytes) -> int:
    """Return the packet id of a PUBLISH whose fixed header is removed."""
    (length,) = struct.unpack_from("!H", publish)
    (number,) = struct.unpack_from("!H", publish, 2 + length)
    return int(number)


class ScriptedBroker:
    """An MQTT broker on the loopback that answers each CONNECT with a script.

    Each connection gets the next script; the last script serves all further connections. A script is a list of
    bytes to send; `None` closes the connection. `heard` has every received packet as (type, bytes after the
    fixed header).
    """

    def __init__(self, *scripts: Sequence[bytes | None]) -> None:
        self._scripts = list(scripts)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress(port=self._server.getsockname()[1])
        self.heard: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._line: socket.socket | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def connected(self) -> bool:
        return self._line is not None and self._line.fileno() != -1

    def say(self, packet: bytes) -> None:
        assert self._line is not None
        self._line.sendall(packet)

    def expect(self, kind: int, seconds: float = 20.0) -> bytes:
        """Return the next received packet of this kind, without its fixed header; drop the packets before it."""
        while True:
            found, body = self.heard.get(timeout=seconds)
            if found == kind:
                return body

    def close(self) -> None:
        self._server.close()
        if self._line is not None:
            self._line.close()

    def _serve(self) -> None:
        while True:
            try:
                self._line, _ = self._server.accept()
                self._hear(self._line)
            except OSError:
                if self._server.fileno() == -1:
                    return

    def _hear(self, line: socket.socket) -> None:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        with line, line.makefile("rb") as stream:
            while packet := _read(stream.read):
                self.heard.put(packet)
                if packet[0] == CONNECT:
                    for words in script:
                        if words is None:
                            return line.shutdown(socket.SHUT_RDWR)
                        line.sendall(words)


def _read(read: Callable[[int], bytes]) -> tuple[int, bytes] | None:
    if not (first := read(1)):
        return None
    length = shift = 0
    while True:
        byte = read(1)[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return first[0] >> 4, read(length)
