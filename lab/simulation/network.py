"""Simulate time and a network. The same seed gives the same events, and hours of virtual time take seconds."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from protofleet.protocol.transport.base import Arrived, Connected, Done, Item, Will
from protofleet.protocol.transport.caught_errors import CaughtErrors

T = TypeVar("T")
Callback = Callable[[], None]
MAX_PACKET = 1 << 21


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """The quality of a network.

    `delay` and `jitter` are in seconds. `loss` and `repeat` are the shares of messages that are lost or
    delivered twice.
    """

    delay: float = 0.005
    jitter: float = 0.0
    loss: float = 0.0
    repeat: float = 0.0


@dataclass
class VirtualClock:
    """The clock of a simulation. Its time jumps from one scheduled call to the next."""

    now: float = 0.0
    _queue: list[tuple[float, int, Callback]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def call_at(self, when: float, callback: Callback) -> None:
        heapq.heappush(self._queue, (when, next(self._order), callback))

    def run(self, until: Callable[[], bool], limit: float = 1e6) -> None:
        while not until() and self._queue and self.now < limit:
            self.now, _, callback = heapq.heappop(self._queue)
            callback()


@dataclass
class SimulatedTransport:
    """A client's connection to the simulated broker. It is a Transport that gives received messages to a function."""

    broker: SimulatedBroker
    name: str
    take: Callable[[Item], None]
    topics: set[str]
    will: Will | None = None
    alive: bool = True
    errors: CaughtErrors = field(default_factory=CaughtErrors)
    broker_certificate_ends: float | None = None
    # A function that is called before each frame is sent. A test can stop a process in this function. The function
    # `before_step` of a Disk has the same purpose.
    before_step: Callable[[str, str], None] = lambda step, topic: None

    def subscribe(self, topic: str) -> None:
        self.topics.add(topic)
        self.broker.note_subscription(self, topic)
        self.broker.send_retained(self, topic)

    def unsubscribe(self, topic: str) -> None:
        self.topics.discard(topic)
        self.broker.forget_subscription(self, topic)

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        if self.alive:
            self.before_step("publish", topic)
            self.broker.publish(topic, frame, retain)

    def reject_connection(self, why: str) -> None:
        """Do nothing. This method is never called, because this broker has the same packet limit for all clients."""

    def close(self) -> None:
        self.alive = False

    def deliver(self, item: Item) -> None:
        if self.alive:
            self.take(item)


@dataclass
class Subscribers:
    """The names of the clients that subscribe to each topic.

    A message is delivered to its subscribers in the order in which their names were first connected. The broker draws
    a random number for each of them, so this order decides which messages a seed loses.
    """

    _names: dict[str, set[str]] = field(
        default_factory=dict
    )  # Topic -> clients that subscribe to this topic.
    _patterns: dict[str, set[str]] = field(default_factory=dict)  # Pattern with a plus sign -> its clients.
    _places: dict[str, int] = field(default_factory=dict)  # Name of a client -> its place in the order.
    _next_place: count[int] = field(default_factory=count)

    def connect(self, name: str, topics: set[str]) -> None:
        """Add a client. A name that is connected already keeps its place."""
        if name not in self._places:
            self._places[name] = next(self._next_place)
        for topic in topics:
            self.add(name, topic)

    def lose(self, name: str, topics: set[str]) -> None:
        """Remove a client, which gets a new place if it connects again."""
        del self._places[name]
        for topic in topics:
            self.remove(name, topic)

    def add(self, name: str, topic: str) -> None:
        self._table(topic).setdefault(topic, set()).add(name)

    def remove(self, name: str, topic: str) -> None:
        names = self._table(topic).get(topic, set())
        names.discard(name)
        if not names:
            self._table(topic).pop(topic, None)

    def of(self, topic: str) -> list[str]:
        """Return the clients that receive a message on this topic, in the order of their places."""
        found = set(self._names.get(topic, ()))
        for pattern, names in self._patterns.items():
            if matches(pattern, topic):
                found |= names
        return sorted(found, key=self._places.__getitem__)

    def _table(self, topic: str) -> dict[str, set[str]]:
        return self._patterns if is_pattern(topic) else self._names


@dataclass
class SimulatedBroker:
    """A broker with topics, retained messages and wills, in virtual time."""

    clock: VirtualClock
    conditions: NetworkConditions = field(default_factory=NetworkConditions)
    seed: int = 0
    retained: dict[str, bytes] = field(default_factory=dict)
    clients: dict[str, SimulatedTransport] = field(default_factory=dict)
    bytes_received: int = 0  # Bytes of all frames that clients have published.
    # Without this table, each message would be compared with the topics of all clients.
    _subscribers: Subscribers = field(default_factory=Subscribers)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def connect(self, name: str, take: Callable[[Item], None], topics: set[str]) -> SimulatedTransport:
        """Connect a client under a name.

        An earlier client with this name is disconnected, and its MQTT will is not published.
        """
        if old := self.clients.get(name):
            old.alive = False
            for topic in old.topics:
                self._subscribers.remove(name, topic)
        self._subscribers.connect(name, topics)
        client = self.clients[name] = self.new_transport(name, take, set(topics))
        self.clock.call_at(self.clock.now, lambda: client.deliver(Connected(MAX_PACKET, 20)))
        for topic in sorted(topics):
            self.send_retained(client, topic)
        return client

    def new_transport(self, name: str, take: Callable[[Item], None], topics: set[str]) -> SimulatedTransport:
        return SimulatedTransport(self, name, take, topics)

    def lose_client(self, name: str) -> None:
        """Disconnect a client as if its process had ended. The broker publishes its MQTT will."""
        client = self.clients.pop(name)
        client.alive = False
        self._subscribers.lose(name, client.topics)
        if client.will:
            self.publish(client.will.topic, client.will.frame, retain=True)

    def publish(self, topic: str, frame: bytes, retain: bool) -> None:
        self.bytes_received += len(frame)
        if retain:
            self.retained[topic] = frame
        for client in filter(None, map(self.clients.get, self._subscribers.of(topic))):
            self._send(client, topic, frame)

    def note_subscription(self, client: SimulatedTransport, topic: str) -> None:
        """Deliver messages on a topic to a client from now on, unless another client has taken its name."""
        if self.clients.get(client.name) is client:
            self._subscribers.add(client.name, topic)

    def forget_subscription(self, client: SimulatedTransport, topic: str) -> None:
        if self.clients.get(client.name) is client:
            self._subscribers.remove(client.name, topic)

    def send_retained(self, client: SimulatedTransport, pattern: str) -> None:
        """Send the retained messages of a topic, or of all topics that match a pattern, to a client."""
        if not is_pattern(pattern):
            found = [pattern] if pattern in self.retained else []
        else:
            found = sorted(topic for topic in self.retained if matches(pattern, topic))
        for topic in found:
            self._send(client, topic, self.retained[topic], retained=True)

    def _send(self, client: SimulatedTransport, topic: str, frame: bytes, retained: bool = False) -> None:
        """Deliver a frame late, twice or never, according to the network conditions."""
        copies = 0 if self._rng.random() < self.conditions.loss else 1
        copies += self._rng.random() < self.conditions.repeat
        for _ in range(copies):
            delay = self.conditions.delay + self._rng.random() * self.conditions.jitter
            self.clock.call_at(
                self.clock.now + delay, lambda: client.deliver(Arrived(topic, frame, retained))
            )


def is_pattern(topic: str) -> bool:
    return "+" in topic


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic matches a pattern in which `+` stands for any level. The protocol uses no `#`."""
    levels, names = pattern.split("/"), topic.split("/")
    return len(levels) == len(names) and all(a in ("+", b) for a, b in zip(levels, names, strict=True))


@dataclass
class VirtualWorker:
    """A worker that does long work immediately, and delivers its result after `seconds` of virtual time."""

    clock: VirtualClock
    deliver: Callable[[Item], None]
    seconds: float = 0.0
    alive: bool = True

    @property
    def is_working(self) -> bool:
        """Return whether the result of the last work is still to come, for devices that take their time."""
        return False

    def submit(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        result: T | Exception
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the same as in a ThreadWorker: `then` raises it again
            result = error
        self.schedule(lambda: then(result))

    def schedule(self, then: Callable[[], None]) -> None:
        """Deliver the result of the work that was just done."""
        self.clock.call_at(self.clock.now + self.seconds, lambda: self._deliver(Done(then)))

    def _deliver(self, done: Done) -> None:
        if self.alive:
            self.deliver(done)
