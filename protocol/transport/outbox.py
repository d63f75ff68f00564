"""What waits to be sent: any thread adds to it, the thread that owns the connection takes from it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from dataclasses import dataclass
from typing import Final, TypeAlias

MAX_BYTES: Final = 64 << 20  # waiting at most; far above any credit that the layer above grants
MAX_ORDERS: Final = 16_384
RESERVED: Final = 8 << 20  # of it, for small frames: a receipt gets through when blocks fill the rest
SMALL: Final = 8 << 10


@dataclass(frozen=True, slots=True)
class Publish:
    topic: str
    frame: bytes
    retain: bool
    size: int  # of the packet


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    topic: str


Order: TypeAlias = Publish | Subscribe | Unsubscribe


class Outbox:
    """Orders in their order. Publishes wait for a place in the window of unacknowledged ones.

    `fileno` becomes readable when there is something to do, so that a selector can watch it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self._window = self._max_packet = 0
        self._waiting: deque[Order] = deque()
        self._bytes = 0
        self._executed = True  # all that was ever put; an order just taken may still be under way
        self._in_flight: dict[int, str] = {}  # packet id -> topic, until it is acknowledged
        self._woken = False  # a byte is on its way that nobody has read
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    def fileno(self) -> int:
        return self._wake_reader.fileno()

    def wake(self) -> None:
        """Once for all that is put until it is heard, as each byte sent hands the interpreter to the other thread."""
        if self._woken:
            return
        self._woken = True
        with contextlib.suppress(OSError):  # full: it is readable already; closed: nobody waits any more
            self._wake_writer.send(b"\0")

    def clear_wake(self) -> None:
        """Before orders are taken.

        The byte is read first: a `wake` between the two is silent, and its order, which was put before it, is taken
        after this. The other way round its byte would be read here and its flag stay, and no later `wake` be heard.
        """
        with contextlib.suppress(OSError):
            self._wake_reader.recv(4096)
        self._woken = False

    def close(self) -> None:
        self._wake_reader.close()
        self._wake_writer.close()

    def connected(self, window: int, max_packet: int) -> None:
        with self._changed:
            self._open, self._window, self._max_packet = True, window, max_packet

    def connection_lost(self) -> None:
        """The connection is gone, and with it all that was waiting or in flight."""
        with self._changed:
            self._open, self._bytes = False, 0
            self._waiting.clear()
            self._in_flight.clear()
            self._executed = True
            self._changed.notify_all()

    def put(self, order: Order) -> str | None:
        """Why the order is refused, or None. While there is no connection, orders vanish."""
        with self._changed:
            if not self._open:
                return None
            if isinstance(order, Publish):
                if order.size > self._max_packet:
                    return f"a packet of {order.size} bytes; the broker takes {self._max_packet}"
                most = MAX_BYTES if order.size <= SMALL else MAX_BYTES - RESERVED
                if self._bytes + order.size > most or len(self._waiting) >= MAX_ORDERS:
                    return f"{self._bytes} bytes in {len(self._waiting)} frames wait for the broker already"
                self._bytes += order.size
            self._waiting.append(order)
            self._executed = False
        self.wake()
        return None

    def take(self) -> Order | None:
        """The next order that may be executed now. Who asks has executed the one before."""
        with self._changed:
            if not self._waiting:
                self._executed = True
                self._changed.notify_all()
                return None
            if isinstance(order := self._waiting[0], Publish):
                if len(self._in_flight) >= self._window:
                    return None
                self._bytes -= order.size
            return self._waiting.popleft()

    def sent(self, packet_id: int, topic: str) -> None:
        with self._changed:
            self._in_flight[packet_id] = topic

    def acknowledged(self, packet_id: int) -> str | None:
        """The topic of the publish that the broker has answered."""
        with self._changed:
            topic = self._in_flight.pop(packet_id, None)
            self._changed.notify_all()
            return topic

    def wait_until_empty(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._executed and not self._in_flight, seconds)
