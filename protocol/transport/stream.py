"""Read and write packets in batches on the socket of paho; PUBLISH and PUBACK packets bypass paho.

For each packet, paho makes five calls to the kernel and takes 0.1 ms. Much of this time is for properties and
reason codes, which our packets do not have. Packets that paho must handle (CONNACK, SUBACK, DISCONNECT ...)
are given to paho one by one. Packets that paho sends are written after all bytes that were sent before.
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
    """A client of paho in which this module, and not paho, reads and writes the socket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begin()

    def begin(self) -> None:
        """Reset the state before each connection."""
        self._reader = PacketReader()
        self._unsent = memoryview(b"")
        self._for_paho = memoryview(b"")
        # End of the connection, as `_sock_recv` will report it to paho: an error, or b"".
        self._end: OSError | bytes | None = None

    def receive(self, buffer: memoryview) -> tuple[list[Packet], int]:
        """Return the packets that are complete now, and the number of bytes that were read."""
        filled = self._fill(buffer)
        return self._reader.read(buffer[:filled]), filled

    def _fill(self, buffer: memoryview) -> int:
        """Read into the buffer, and return the number of bytes.

        A plain socket is read once, because one read returns all available bytes. With TLS, each read returns
        one record.
        """
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
        """Return the socket, with or without TLS.

        The cast is correct, because paho returns another type only with websockets.
        """
        return cast("socket.socket | None", self.socket())

    def hand_over(self, packet: bytes) -> None:
        """Let paho read one packet that this module does not handle."""
        self._for_paho = memoryview(packet)
        self.loop_read()

    def hand_over_end(self) -> None:
        """Report the end of the connection to paho, if the connection has ended."""
        if self._end is not None and self.socket() is not None:
            self.loop_read()

    def send(self, pieces: Iterable[bytes]) -> None:
        """Send these pieces after the bytes that were sent before; paho must have nothing left to write."""
        self._unsent = memoryview(b"".join((self._unsent, *pieces)))
        self._send_rest()

    def flush(self) -> None:
        """Write as many of the unsent bytes as the socket accepts now."""
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

    # paho calls these methods in place of recv and send of the socket.

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
