"""A simulated broker whose clients have lines: a message waits for its line, and takes the time of its bytes.

A line carries TCP. A sender begins with ten packets and sends twice as much after each round trip, until the line is
full (slow start). A pause halves this window for each time-out, as in Linux. A lost packet is sent again after a
round trip, and the sender then sends less.

The broker and the device acknowledge each message (PUBACK). An acknowledgement is a small packet, but it ends a pause
of its direction, so it decides how large the window of the next message is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from protofleet.lab.simulation.network import SimulatedBroker, SimulatedTransport
from protofleet.lab.virtual.profiles import LineProfile
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.transport.base import Arrived, Item, packet_bytes

SEGMENT: Final = 1448  # Bytes of data in a packet of TCP with time stamps.
HEADERS: Final = 66  # Bytes of the Ethernet, IP and TCP headers of a packet.
FIRST_WINDOW: Final = 10 * SEGMENT  # RFC 6928
LEAST_WAIT: Final = 0.2  # Linux: a packet counts as lost after a round trip and this time.
MOST_HALVINGS: Final = 30  # No window is larger than the first one times 2^30.
AFTER_LOSS: Final = 0.7  # CUBIC: share of the window that is left after a loss.
PUBACK: Final = 4  # Bytes of the acknowledgement of a message at QoS 1.
SUBSCRIBE: Final = 8  # Bytes of a SUBSCRIBE packet, without the topic.


@dataclass
class OneWay:
    """One direction of a line."""

    mbits: float
    delay: float
    loss: float
    rng: random.Random
    busy_until: float = 0.0
    window: float = FIRST_WINDOW
    arrived: float = 0.0  # Arrival of the last message. TCP delivers in order.
    bytes: int = 0  # Bytes of all packets, with those that were sent again.
    seconds: float = 0.0  # Time in which the radio has sent or received.

    def send(self, now: float, size: int) -> float:
        """Send a message of `size` bytes, and return when its last byte arrives."""
        trip, rate = 2 * self.delay, self.mbits * 1e6 / 8
        begun = max(now, self.busy_until)
        timeouts = int((begun - self.busy_until) / (LEAST_WAIT + trip))
        self.window = max(FIRST_WINDOW, self.window / 2 ** min(timeouts, MOST_HALVINGS))
        packets = -(-size // SEGMENT)
        lost = [i for i in range(packets) if self.rng.random() < self.loss] if self.loss else []
        left, at = float(size + HEADERS * packets), begun
        while self.window < rate * trip and left > self.window:
            # The line idles until the first of these packets is acknowledged.
            at, left, self.window = at + trip, left - self.window, 2 * self.window
        if self.window < rate * trip and left > self.window / 2:
            self.window *= 2
        again = len(lost) * (SEGMENT + HEADERS)
        at += (left + again) / rate
        # A lost packet of the last window delays the end of the message. Behind an earlier one, the line is not idle.
        late = bool(lost) and lost[-1] >= packets - min(self.window, rate * trip) / SEGMENT
        if lost:
            self.window = max(FIRST_WINDOW, self.window * AFTER_LOSS)
        whole = size + HEADERS * packets + again
        self.busy_until, self.bytes, self.seconds = at, self.bytes + whole, self.seconds + whole / rate
        self.arrived = max(self.arrived, at + self.delay + (trip if late else 0.0))
        return self.arrived


@dataclass
class VirtualLine:
    """The line of one device, in both directions."""

    profile: LineProfile
    up: OneWay
    down: OneWay

    @classmethod
    def of(cls, profile: LineProfile, rng: random.Random) -> VirtualLine:
        ways = (OneWay(mbits, profile.delay, profile.loss, rng) for mbits in (profile.up, profile.down))
        return cls(profile, *ways)

    @property
    def bytes(self) -> int:
        return self.up.bytes + self.down.bytes

    @property
    def joules(self) -> float:
        return (self.up.seconds + self.down.seconds) * self.profile.watts


@dataclass
class LinedTransport(SimulatedTransport):
    """A connection over a line. Messages that a process has sent before its end may still arrive."""

    broker: LinedBroker

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        if self.alive:
            self.before_step("publish", topic)
            self._after_line(packet_bytes(topic, len(frame)), lambda: self._arrived(topic, frame, retain))

    def _arrived(self, topic: str, frame: bytes, retain: bool) -> None:
        self.broker.arrival(self.name, DOWN, PUBACK)
        self.broker.publish(topic, frame, retain)

    def subscribe(self, topic: str) -> None:
        self._after_line(SUBSCRIBE + len(topic), lambda: super(LinedTransport, self).subscribe(topic))

    def _after_line(self, size: int, then: Callable[[], None]) -> None:
        self.broker.clock.call_at(self.broker.arrival(self.name, UP, size), then)


@dataclass
class LinedBroker(SimulatedBroker):
    """A broker whose devices have lines. A client without a line, such as the coordinator, is next to the broker."""

    lines: Mapping[str, VirtualLine] = field(default_factory=dict)

    def arrival(self, client: str, way: str, size: int) -> float:
        """Send bytes over the line of a client, and return when they arrive."""
        line, now = self.lines.get(client), self.clock.now
        if line is None:
            return now
        return (line.up if way == UP else line.down).send(now, size)

    def new_transport(self, name: str, take: Callable[[Item], None], topics: set[str]) -> SimulatedTransport:
        return LinedTransport(self, name, take, topics)

    def _send(self, client: SimulatedTransport, topic: str, frame: bytes, retained: bool = False) -> None:
        def deliver() -> None:
            if client.alive:
                self.arrival(client.name, UP, PUBACK)
                client.deliver(Arrived(topic, frame, retained))

        self.clock.call_at(self.arrival(client.name, DOWN, packet_bytes(topic, len(frame))), deliver)
