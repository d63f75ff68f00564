"""The socket under paho: packets come and go in batches, and PUBLISH and PUBACK never reach paho.

paho takes five calls to the kernel and 0.1 ms for each packet, much of it for properties and reason codes that ours
do not have. What it has to see (CONNACK, SUBACK, DISCONNECT ...) is handed to it packet by packet, and what it sends
leaves behind what was sent before.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final, cast

from paho.mqtt.client import Client

from protofleet.protocol.transport.packets import Packet, PacketReader

NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class StreamClient(Client):
    """paho's client, without its own reading and writing of the socket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin()

    def begin(self) -> None:
        """Before each connection."""
        self._reader = PacketReader()
        self._unsent = memoryview(b"")
        self._for_paho = memoryview(b"")
        self._end: OSError | bytes | None = None  # of the connection, as paho is to hear it

    def receive(self, buffer: memoryview) -> tuple[list[Packet], int]:
        """What is complete now, and how many bytes have come."""
        filled = self._fill(buffer)
        return self._reader.read(buffer[:filled]), filled

    def _fill(self, buffer: memoryview) -> int:
        """TLS gives one record at a time, a plain socket all that it has."""
        filled = 0
        while filled < len(buffer) and self._end is None and (sock := self._stream()) is not None:
            try:
                size = sock.recv_into(buffer[filled:])
            except NOT_NOW:
                break
            except OSError as error:
                self._end = error
                break
            if not size:
                self._end = b""
            filled += size
            if not isinstance(sock, ssl.SSLSocket):
                break
        return filled

    def _stream(self) -> socket.socket | None:
        """TLS or not: over websockets, which are not used, it would be neither."""
        return cast("socket.socket | None", self.socket())

    def hand_over(self, packet: bytes) -> None:
        """Let paho read one packet that is none of ours."""
        self._for_paho = memoryview(packet)
        self.loop_read()

    def hand_over_end(self) -> None:
        """Let paho find out that the connection has ended, if it has."""
        if self._end is not None and self.socket() is not None:
            self.loop_read()

    def send(self, pieces: Iterable[bytes]) -> None:
        """After what was sent before, of which paho must have nothing left to write."""
        self._unsent = memoryview(b"".join((self._unsent, *pieces)))
        self._send_rest()

    def flush(self) -> None:
        """As much as the socket takes."""
        self._send_rest()
        if self.want_write() and not self._unsent:
            self.loop_write()

    def has_unsent(self) -> bool:
        return len(self._unsent) > 0 or self.want_write()

    def _send_rest(self) -> None:
        while self._unsent and self._end is None and (sock := self._stream()) is not None:
            try:
                self._unsent = self._unsent[sock.send(self._unsent) :]
            except NOT_NOW:
                return
            except OSError as error:
                self._end = error

    # What paho calls in place of recv and send of the socket.

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._for_paho:
            found, self._for_paho = bytes(self._for_paho[:bufsize]), self._for_paho[bufsize:]
            return found
        if isinstance(self._end, OSError):
            raise self._end
        if self._end is None:
            raise BlockingIOError
        return self._end

    def _sock_send(self, buf: bytes | bytearray) -> int:
        self._send_rest()
        if self._unsent:
            raise BlockingIOError
        return super()._sock_send(buf)
