"""Virtual time and a simulated network: the same seed gives the same events. Hours of deadlines pass in seconds."""

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
Call = Callable[[], None]
MAX_PACKET = 1 << 21


@dataclass(frozen=True, slots=True)
class NetworkConditions:
    """Seconds of delay and jitter; shares of messages that are lost or repeated."""

    delay: float = 0.005
    jitter: float = 0.0
    loss: float = 0.0
    repeat: float = 0.0


@dataclass
class World:
    conditions: NetworkConditions = field(default_factory=NetworkConditions)
    seed: int = 0
    now: float = 0.0
    _queue: list[tuple[float, int, Call]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def at(self, when: float, call: Call) -> None:
        heapq.heappush(self._queue, (when, next(self._order), call))

    def transmit(self, deliver: Call) -> None:
        """Deliver late, twice or never, by the network conditions."""
        copies = 0 if self.rng.random() < self.conditions.loss else 1
        copies += self.rng.random() < self.conditions.repeat
        for _ in range(copies):
            self.at(self.now + self.conditions.delay + self.rng.random() * self.conditions.jitter, deliver)

    def run(self, until: Callable[[], bool], limit: float = 1e6) -> None:
        while not until() and self._queue and self.now < limit:
            self.now, _, call = heapq.heappop(self._queue)
            call()


@dataclass
class Session:
    """One client of the simulated broker: a Transport whose inbox is a function."""

    broker: Broker
    name: str
    take: Callable[[Item], None]
    will: Will | None
    topics: set[str]
    alive: bool = True
    errors: CaughtErrors = field(default_factory=CaughtErrors)
    before_step: Callable[[str, str], None] = lambda step, topic: (
        None
    )  # as of a Disk: a frame is about to leave

    def subscribe(self, topic: str) -> None:
        self.topics.add(topic)
        self.broker.give_retained(self, topic)

    def unsubscribe(self, topic: str) -> None:
        self.topics.discard(topic)

    def publish(self, topic: str, frame: bytes, retain: bool = False) -> None:
        if self.alive:
            self.before_step("publish", topic)
            self.broker.publish(topic, frame, retain)

    def reject_connection(self, why: str) -> None:
        """Never: this broker has one limit for all clients."""

    def close(self) -> None:
        self.alive = False

    def deliver(self, item: Item) -> None:
        if self.alive:
            self.take(item)


@dataclass
class Broker:
    """Topics, retained messages and wills, in virtual time."""

    world: World
    retained: dict[str, bytes] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    published: int = 0  # bytes of frames received, as a real broker counts them

    def session(
        self, name: str, take: Callable[[Item], None], topics: set[str], will: Will | None = None
    ) -> Session:
        """Connect under a name; a client of that name is disconnected, and its will is not published."""
        if old := self.sessions.get(name):
            old.alive = False
        session = self.sessions[name] = Session(self, name, take, will, set(topics))
        self.world.at(self.world.now, lambda: session.deliver(Connected(MAX_PACKET, 20)))
        for topic in sorted(topics):
            self.give_retained(session, topic)
        return session

    def lose_client(self, name: str) -> None:
        """The client's process has ended: the broker publishes its will."""
        session = self.sessions.pop(name)
        session.alive = False
        if session.will:
            self.publish(session.will.topic, session.will.frame, retain=True)

    def publish(self, topic: str, frame: bytes, retain: bool) -> None:
        self.published += len(frame)
        if retain:
            self.retained[topic] = frame
        for session in list(self.sessions.values()):
            if any(matches(t, topic) for t in session.topics):
                self._send(session, topic, frame)

    def give_retained(self, session: Session, pattern: str) -> None:
        for topic, frame in sorted(self.retained.items()):
            if matches(pattern, topic):
                self._send(session, topic, frame)

    def _send(self, session: Session, topic: str, frame: bytes) -> None:
        self.world.transmit(lambda: session.deliver(Arrived(topic, frame)))


def matches(pattern: str, topic: str) -> bool:
    """MQTT's `+`; the protocol uses no `#`."""
    wanted, parts = pattern.split("/"), topic.split("/")
    return len(wanted) == len(parts) and all(w in ("+", p) for w, p in zip(wanted, parts, strict=True))


@dataclass
class VirtualWorker:
    """Does long work at once, and delivers its result after so many virtual seconds."""

    world: World
    deliver: Callable[[Item], None]
    seconds: float = 0.0
    alive: bool = True

    def submit(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        result: T | Exception
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as a ThreadWorker does: `then` raises it again
            result = error
        self.world.at(self.world.now + self.seconds, lambda: self._deliver(Done(lambda: then(result))))

    def _deliver(self, done: Done) -> None:
        if self.alive:
            self.deliver(done)
