"""A model of Mosquitto with its measured weaknesses.

- A PUBACK does not mean delivery: a message that meets a full queue is dropped without a sign.
- At most 20 messages to a subscriber are unacknowledged; `max_queued` more wait, also for an absent subscriber.
- After a kill only the last autosave is left, often nothing; old messages from it come again.
- Messages that a subscriber had not acknowledged when its connection ended are sent again.
- If two connections have one name, the older one is closed: with a message (2.1) or without one (2.0).
- A silent party counts as lost after 1.5 times its keepalive, and then the broker publishes its will.

The model may also lose, repeat and bring back messages at random, as a chain of bridges does.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import protofleet.lab.simulation.network
from protofleet.protocol.transport.base import Will
from tests.simulator.clock import Clock

if TYPE_CHECKING:
    from tests.simulator.line import Connection

INFLIGHT = 20
matches = functools.lru_cache(4096)(protofleet.lab.simulation.network.matches)
# The topic, the frame, and whether the broker had retained the message before the client subscribed.
Message = tuple[str, bytes, bool]


def honest(topic: str, frame: bytes) -> list[tuple[str, bytes]]:
    return [(topic, frame)]


@dataclass
class Manners:
    """The settings of this broker, and its faults at the moment."""

    max_packet: int = 1 << 21
    max_queued: int = 1000
    autosave_seconds: float = 0.0  # Seconds between two saves; with 0 the broker never saves.
    says_taken_over: bool = True
    will_at_takeover: bool = True
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0  # The share of messages that come once more, up to `late_seconds` later.
    late_seconds: float = 300.0


@dataclass
class Session:
    name: str
    expires: float  # Seconds that the session outlives its connection; with 0 it ends at once.
    topics: dict[str, None] = field(default_factory=dict)
    queue: deque[Message] = field(default_factory=deque)
    flying: dict[int, Message] = field(default_factory=dict)
    connection: Connection | None = None
    will: Will | None = None
    ids: int = 0

    def copy(self) -> Session:
        return Session(
            self.name, self.expires, dict(self.topics), deque(self.queue), dict(self.flying), ids=self.ids
        )


class Broker:
    def __init__(self, clock: Clock, dice: random.Random, manners: Manners) -> None:
        self.clock, self.dice, self.manners = clock, dice, manners
        self.up, self.dropped = True, 0
        self.meddle: Callable[[str, bytes], list[tuple[str, bytes]]] = honest
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, bytes] = {}
        self._saved: tuple[dict[str, Session], dict[str, bytes]] = ({}, {})
        if manners.autosave_seconds:
            self._autosave()

    # The calls of connections.

    def accept(self, connection: Connection, clean: bool, expires: float, will: Will | None) -> bool:
        """Accept a connection, and return whether it resumes an earlier session."""
        name = connection.client_id
        old = self.sessions.get(name)
        if old and old.connection:
            self._take_over(old, old.connection)
        if clean or old is None:
            self.sessions[name] = old = Session(name, expires)
            resumed = False
        else:
            resumed = True
        old.connection, old.expires, old.will = connection, expires, will
        return resumed

    def resume(self, session: Session) -> None:
        """Send the unacknowledged messages again, then the waiting ones."""
        unacknowledged, session.flying = list(session.flying.values()), {}
        session.queue.extendleft(reversed(unacknowledged))
        self._fill(session)

    def subscribe(self, session: Session, topic: str) -> None:
        session.topics[topic] = None
        for known, frame in sorted(self.retained.items()):
            if matches(topic, known):
                self._hand(session, (known, frame, True))

    def publish(self, topic: str, frame: bytes, retain: bool) -> None:
        if not self.up:
            return
        if retain:
            self.retained[topic] = frame
        m, copies = self.manners, 1
        if m.loss and self.dice.random() < m.loss:
            copies = 0
        elif m.repeat and self.dice.random() < m.repeat:
            copies = 2
        for _ in range(copies):
            for message in self.meddle(topic, frame):
                self._spread(message)
        if m.late and self.dice.random() < m.late:
            seconds = self.dice.random() * m.late_seconds
            self.clock.after(seconds, "broker comes late", lambda: self._spread((topic, frame)))

    def acknowledged(self, session: Session, packet: int) -> None:
        if session.flying.pop(packet, None):
            self._fill(session)

    def lost(self, connection: Connection, say_will: bool = True) -> None:
        """End a connection, as far as the broker can tell."""
        session = self.sessions.get(connection.client_id)
        if session is None or session.connection is not connection:
            return
        will, session.connection, session.will = session.will, None, None
        if say_will and will:
            self.publish(will.topic, will.frame, retain=True)
        if not session.expires:
            del self.sessions[session.name]
        else:
            self.clock.after(
                session.expires, f"broker forgets {session.name}?", lambda: self._expire(session)
            )

    # The faults of the broker.

    def die(self, keeps: str) -> None:
        """Stop the broker; `keeps` is "nothing", "saved" (kill) or "all" (an orderly restart)."""
        self.up = False
        connections = [s.connection for s in self.sessions.values() if s.connection]
        if keeps == "all":
            self._save()
        self.sessions, self.retained = ({}, {}) if keeps == "nothing" else self._saved
        self._saved = ({}, {})
        for connection in connections:
            connection.reset("the broker went away")

    def start(self) -> None:
        self.up = True
        for session in self.sessions.values():
            self.clock.after(session.expires, f"broker forgets {session.name}?", self._expiry(session))

    def _expiry(self, session: Session) -> Callable[[], None]:
        return lambda: self._expire(session)

    def _expire(self, session: Session) -> None:
        if self.sessions.get(session.name) is session and session.connection is None:
            del self.sessions[session.name]

    def _take_over(self, session: Session, connection: Connection) -> None:
        self.lost(connection, say_will=self.manners.will_at_takeover)
        connection.cut("Session taken over (142)", final=self.manners.says_taken_over)

    def _spread(self, message: tuple[str, bytes]) -> None:
        for session in list(self.sessions.values()):
            if any(matches(topic, message[0]) for topic in session.topics):
                self._hand(session, (*message, False))

    def _hand(self, session: Session, message: Message) -> None:
        if session.connection and len(session.flying) < INFLIGHT and not session.queue:
            self._send(session, session.connection, message)
        elif len(session.queue) < self.manners.max_queued:
            session.queue.append(message)
        else:
            self.dropped += 1

    def _fill(self, session: Session) -> None:
        while session.connection and session.queue and len(session.flying) < INFLIGHT:
            self._send(session, session.connection, session.queue.popleft())

    def _send(self, session: Session, connection: Connection, message: Message) -> None:
        session.ids += 1
        session.flying[session.ids] = message
        connection.deliver(session.ids, message)

    def _autosave(self) -> None:
        if self.up:
            self._save()
        self.clock.after(self.manners.autosave_seconds, "broker saves", self._autosave)

    def _save(self) -> None:
        durable = {n: s.copy() for n, s in self.sessions.items() if s.expires}
        self._saved = (durable, dict(self.retained))
