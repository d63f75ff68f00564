"""Queue the orders of a connection: publish, subscribe, unsubscribe.

Any thread may add orders. The thread that owns the connection takes and executes them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

# Largest number of bytes that may wait; the layer above never sends so many bytes in one step.
MAX_BYTES: Final = 64 << 20
MAX_ORDERS: Final = 16_384
# Number of bytes that only small frames may use. So a receipt has space even if blocks fill all other bytes.
RESERVED: Final = 8 << 20
SMALL: Final = 8 << 10


@dataclass(frozen=True, slots=True)
class Publish:
    topic: str
    frame: bytes
    retain: bool
    size: int  # bytes of the whole PUBLISH packet
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    topic: str


Order: TypeAlias = Publish | Subscribe | Unsubscribe


class Outbox:
    """The queue of orders: publish, subscribe, unsubscribe.

    Orders are executed in the sequence in which they were added. A publish at QoS 1 waits while too many
    publishes are unacknowledged. `wake` is called after an order was added.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._open = False
        self._window = self._max_packet = 0
        self._waiting: deque[Order] = deque()
        self._bytes = 0
        # True if all orders have been executed. When `take` returns the last order, the caller has not executed this
        # order yet. So only the next call of `take`, which finds no order, sets this to True.
        self._executed = True
        self._in_flight: dict[int, str] = {}  # packet id -> topic, until the publish is acknowledged

    def connected(self, window: int, max_packet: int) -> None:
        with self._changed:
            self._open, self._window, self._max_packet = True, window, max_packet

    def connection_lost(self) -> None:
        """Drop all orders that were waiting or in flight."""
        with self._changed:
            self._open, self._bytes = False, 0
            self._waiting.clear()
            self._in_flight.clear()
            self._executed = True
            self._changed.notify_all()

    def put(self, order: Order) -> str | None:
        """Add an order; return None, or the reason why the order is refused.

        While there is no connection, orders are dropped.
        """
        with self._changed:
            if not self._open:
                return None
            if isinstance(order, Publish):
                if order.size > self._max_packet:
                    return f"the packet has {order.size} bytes, but the broker accepts at most {self._max_packet}"
                most = MAX_BYTES if order.size <= SMALL else MAX_BYTES - RESERVED
                if self._bytes + order.size > most or len(self._waiting) >= MAX_ORDERS:
                    return f"{self._bytes} bytes in {len(self._waiting)} frames wait for the broker already"
                self._bytes += order.size
            self._waiting.append(order)
            self._executed = False
        self._wake()
        return None

    def take(self) -> Order | None:
        """Return the next order that may be executed now. The caller must have executed the previous order."""
        with self._changed:
            if not self._waiting:
                self._executed = True
                self._changed.notify_all()
                return None
            if isinstance(order := self._waiting[0], Publish):
                if order.qos and len(self._in_flight) >= self._window:
                    return None
                self._bytes -= order.size
            return self._waiting.popleft()

    def sent(self, packet_id: int, topic: str) -> None:
        with self._changed:
            self._in_flight[packet_id] = topic

    def acknowledged(self, packet_id: int) -> str | None:
        """Remove an acknowledged publish from the window, and return its topic."""
        with self._changed:
            topic = self._in_flight.pop(packet_id, None)
            self._changed.notify_all()
            return topic

    def wait_until_empty(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._executed and not self._in_flight, seconds)
