"""The client of one party, like protocol/transport/mqtt.py.

It is a Transport that loses its waiting messages when its connection ends.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

from protofleet.protocol.transport.base import (
    Arrived,
    Connected,
    Denied,
    Disconnected,
    Item,
    Will,
    packet_bytes,
)
from protofleet.protocol.transport.caught_errors import CaughtErrors
from protofleet.protocol.transport.outbox import MAX_BYTES, MAX_ORDERS
from tests.simulator.broker import Broker
from tests.simulator.clock import Clock
from tests.simulator.pipe import Pipe, Weather

WINDOW = 20
KEEPALIVE = 30.0
CONNECT_SECONDS = 5.0
SHORTEST, LONGEST, STABLE = 0.5, 30.0, 10.0


class Connection:
    """A connection, from CONNECT until one of the two ends finds it dead."""

    def __init__(self, line: Line) -> None:
        self.line, self.client_id = line, line.client_id
        self.up = Pipe(line.clock, line.dice, line.weather, f"{line.name} >")
        self.down = Pipe(line.clock, line.dice, line.weather, f"{line.name} <")
        self.up.blocked, self.down.blocked = "up" in line.blocked, "down" in line.blocked
        self.live = True  # The client takes it for alive.

    def deliver(self, packet: int, message: tuple[str, bytes, bool]) -> None:
        topic, frame, retained = message
        size = packet_bytes(topic, len(frame))
        self.down.send(
            size, f"{short(topic)} {len(frame)}", lambda: self.line.received(self, packet, message)
        )

    def cut(self, reason: str, final: bool = False) -> None:
        """End the connection from the broker's side; the notice arrives when the network lets it through."""
        self.down.send(4, "DISCONNECT", lambda: self.line.lost(self, reason, final))
        self.up.dead = True

    def reset(self, reason: str) -> None:
        """End the connection for both ends at once; everything on the way is lost."""
        self.up.dead = self.down.dead = True
        line = self.line
        line.clock.after(0.001, f"{line.name} reset", lambda: line.lost(self, reason))


class Line:
    """A Transport that hands its items to `tell`."""

    def __init__(
        self, clock: Clock, broker: Broker, dice: random.Random, name: str, client_id: str,
        tell: Callable[[Item], None], weather: Weather, topics: tuple[str, ...], expires: float, clean: bool,
    ) -> None:  # fmt: skip
        self.clock, self.broker, self.dice, self.name, self.client_id = clock, broker, dice, name, client_id
        self.tell, self.weather, self.expires, self.clean = tell, weather, expires, clean
        self.will: Will | None = None
        self.errors = CaughtErrors()
        self.topics = dict.fromkeys(topics)
        self.blocked: set[str] = set()
        # The bytes and frames of PUBLISH packets by direction, as the party should count them.
        self.bytes: Counter[str] = Counter()
        self.frames: Counter[str] = Counter()
        self.before_publish: Callable[[], None] = lambda: None
        self.says: Callable[[str, bytes], None] = lambda topic, frame: None
        self._connection: Connection | None = None
        self._open, self._over, self._tries, self._since = False, False, 0, 0.0
        self._waiting: deque[tuple[str, bytes, bool]] = deque()
        self._bytes = self._flying = 0

    def start(self) -> None:
        self.clock.after(0.0, f"{self.name} connects", self._connect)

    def leave(self, will: Will) -> None:
        """Leave a will with the broker, which publishes it when the connection dies."""
        self.will = will
        self.says(will.topic, will.frame)

    # The Transport.

    def reject_connection(self, why: str) -> None:
        self.reset()

    def subscribe(self, topic: str) -> None:
        self.topics[topic] = None
        if self._open:
            self._ask_for(topic)

    def unsubscribe(self, topic: str) -> None:
        self.topics.pop(topic, None)
        if self._open and (connection := self._connection):
            connection.up.send(
                20, "UNSUBSCRIBE", lambda: self._at_broker(connection, lambda s: s.topics.pop(topic, None))
            )

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        self.before_publish()
        self.says(topic, frame)
        size = packet_bytes(topic, len(frame))
        self.bytes["out"] += size
        self.frames["out"] += len(frame)
        if not self._open:
            return
        if size > self.broker.manners.max_packet:
            self.tell(Denied(topic, f"a packet of {size} bytes"))
        elif self._bytes + size > MAX_BYTES or len(self._waiting) >= MAX_ORDERS:
            self.tell(Denied(topic, "too much waits already"))
        else:
            self._bytes += size
            self._waiting.append((topic, frame, retain))
            self._pump()

    def close(self) -> None:
        """Close the connection in good order, so that the broker publishes no will."""
        self._over = True
        if (connection := self._connection) and self._open:
            while self._waiting:
                self._put(connection, self._waiting.popleft())
            connection.up.send(4, "DISCONNECT", lambda: self.broker.lost(connection, say_will=False))
        self._drop()

    def count_in(self, item: Arrived) -> None:
        self.bytes["in"] += packet_bytes(item.topic, len(item.frame))
        self.frames["in"] += len(item.frame)

    # The faults of the line.

    def kill(self, power: bool) -> None:
        """End the line with its process; if the power fails, the broker gets no notice."""
        self._over = True
        if connection := self._connection:
            connection.down.dead = True
            if power:
                connection.up.dead = True
                self.clock.after(1.5 * KEEPALIVE, f"{self.name} missed", lambda: self.broker.lost(connection))
            else:
                connection.up.send(4, "FIN", lambda: self.broker.lost(connection))
        self._drop()

    def block(self, ways: set[str]) -> None:
        """Drop the packets of these directions; after a while each side finds the other silent."""
        self.blocked = set(ways)
        if connection := self._connection:
            self._block(connection)

    def _block(self, connection: Connection) -> None:
        if "up" in self.blocked:
            connection.up.block()
            self.clock.after(
                1.5 * KEEPALIVE, f"{self.name} missed?", lambda: self._missed(connection, connection.up)
            )
        if "down" in self.blocked:
            connection.down.block()
        if self.blocked:
            seconds = KEEPALIVE * (1 + self.dice.random())
            self.clock.after(seconds, f"{self.name} hears nothing?", lambda: self._silent(connection))

    def heal(self) -> None:
        self.blocked = set()
        if connection := self._connection:
            connection.up.heal()
            connection.down.heal()

    def reset(self) -> None:
        """Reset the TCP connection, so that both sides know at once."""
        if (connection := self._connection) and connection.live:
            connection.reset("connection reset")
            self.broker.lost(connection)

    def _missed(self, connection: Connection, pipe: Pipe) -> None:
        if pipe.blocked and not pipe.dead:
            connection.up.dead = True
            self.broker.lost(connection)
            connection.cut("keepalive timeout at the broker")

    def _silent(self, connection: Connection) -> None:
        if connection is self._connection and (connection.down.blocked or connection.up.blocked):
            self.lost(connection, "keepalive timeout")

    def lost(self, connection: Connection, reason: str, final: bool = False) -> None:
        """Handle a connection that the client finds dead."""
        if connection is not self._connection or self._over:
            return
        connection.live, connection.down.dead = False, True
        connection.up.send(4, "FIN", lambda: self.broker.lost(connection))
        if connection.up.blocked:
            self.clock.after(1.5 * KEEPALIVE, f"{self.name} missed", lambda: self.broker.lost(connection))
        if self.clock.now - self._since > STABLE:
            self._tries = 0
        self._drop()
        self.tell(Disconnected(reason, final))
        if not final:
            self._again()

    def received(self, connection: Connection, packet: int, message: tuple[str, bytes, bool]) -> None:
        topic, frame, retained = message
        connection.up.send(
            4, "PUBACK", lambda: self._at_broker(connection, lambda s: self.broker.acknowledged(s, packet))
        )
        self.tell(Arrived(topic, frame, retained))

    # Inside.

    def _again(self) -> None:
        pause = min(LONGEST, SHORTEST * 2.0**self._tries) * (0.5 + 0.5 * self.dice.random())
        self._tries += 1
        self.clock.after(pause, f"{self.name} connects", self._connect)

    def _connect(self) -> None:
        if self._over:
            return
        if self.blocked or not self.broker.up:
            refused = 0.01 if not self.blocked else CONNECT_SECONDS
            self.clock.after(refused, f"{self.name} cannot connect", self._failed)
            return
        connection = self._connection = Connection(self)
        connection.up.send(100, "CONNECT", lambda: self._accepted(connection))
        self.clock.after(CONNECT_SECONDS, f"{self.name} connected?", lambda: self._late(connection))

    def _failed(self) -> None:
        if not self._over:
            self.tell(Disconnected("no answer from the broker"))
            self._again()

    def _late(self, connection: Connection) -> None:
        if connection is self._connection and not self._open:
            self.lost(connection, "no CONNACK")

    def _accepted(self, connection: Connection) -> None:
        if not self.broker.up:
            return
        self.broker.accept(connection, self.clean, self.expires, self.will)
        most = self.broker.manners.max_packet
        connection.down.send(20, "CONNACK", lambda: self._welcomed(connection, most))
        self._at_broker(connection, self.broker.resume)

    def _welcomed(self, connection: Connection, max_packet: int) -> None:
        if connection is not self._connection:
            return
        self._open, self._since = True, self.clock.now
        for topic in list(self.topics):
            self._ask_for(topic)
        self.tell(Connected(max_packet, WINDOW))

    def _ask_for(self, topic: str) -> None:
        connection = self._connection
        assert connection is not None
        connection.up.send(
            len(topic) + 7, f"SUBSCRIBE {short(topic)}",
            lambda: self._at_broker(connection, lambda s: self.broker.subscribe(s, topic)),
        )  # fmt: skip

    def _at_broker(self, connection: Connection, call: Callable[..., object]) -> None:
        session = self.broker.sessions.get(connection.client_id)
        if self.broker.up and session and session.connection is connection:
            call(session)

    def _pump(self) -> None:
        while self._waiting and self._flying < WINDOW and self._connection:
            self._put(self._connection, self._waiting.popleft())

    def _put(self, connection: Connection, order: tuple[str, bytes, bool]) -> None:
        topic, frame, retain = order
        size = packet_bytes(topic, len(frame))
        self._bytes -= size
        self._flying += 1

        def arrive() -> None:
            connection.down.send(4, "PUBACK", lambda: self._acknowledged(connection))
            self.broker.publish(topic, frame, retain)

        connection.up.send(size, f"{short(topic)} {len(frame)}", arrive)

    def _acknowledged(self, connection: Connection) -> None:
        if connection is self._connection and self._flying:
            self._flying -= 1
            self._pump()

    def _drop(self) -> None:
        self._connection, self._open = None, False
        self._waiting.clear()
        self._bytes = self._flying = 0


def short(topic: str) -> str:
    """Return a topic without the parts that differ from run to run.

    The name of a broadcast depends on a key that the system draws.
    """
    parts = topic.split("/")[3:]
    return "bcast" if parts[0] == "bcast" else "/".join(parts)
