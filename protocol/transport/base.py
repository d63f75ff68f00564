"""Define how frames are sent and received.

The users of this protocol do not see whether MQTT carries the frames, or memory in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protofleet.protocol.transport.caught_errors import CaughtErrors


@dataclass(frozen=True, slots=True)
class Connected:
    """The event that this client is connected to the broker, with the limits that the broker stated."""

    max_packet: int  # bytes that the broker accepts in one PUBLISH packet
    receive_max: int


@dataclass(frozen=True, slots=True)
class Arrived:
    topic: str
    frame: bytes
    retained: bool = False  # the broker has kept it for new subscribers: it was published before


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The event that the connection is lost.

    `final` says not to try again (taken over, not allowed ...).
    """

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The event that the broker refused to pass on a frame (because of its ACL or its quota)."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The event that work on another thread has ended; `call` hands over its result."""

    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The request to end this process with a bye and a DISCONNECT."""

    reason: str


Item: TypeAlias = Connected | Arrived | Disconnected | Denied | Done | StopRequest


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes, retained, when this client's connection is lost."""

    topic: str
    frame: bytes


class Transport(Protocol):
    """A connection to the broker that sends frames.

    It puts everything that it receives into one receive queue, which it gets at construction, as an `Item`.
    """

    @property
    def errors(self) -> CaughtErrors: ...

    @property
    def broker_certificate_ends(self) -> float | None:
        """Return the Unix time when the broker's certificate ends.

        It is the certificate that the broker showed at the last connect. Return None if the broker shows
        none.
        """

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic now and after every reconnect."""

    def unsubscribe(self, topic: str) -> None: ...

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        """Publish a frame, or drop it while there is no connection: the layer above asks again."""

    def reject_connection(self, why: str) -> None:
        """End this connection, which cannot be used, and try again after a pause that grows."""

    def close(self) -> None: ...


def packet_bytes(topic: str, frame: int) -> int:
    """Return the exact size of an MQTT 5 PUBLISH at QoS 1 without properties.

    At QoS 0 the packet has two bytes less.
    """
    remaining = 2 + len(topic.encode()) + 2 + 1 + frame
    length = 1 + (remaining > 127) + (remaining > 16_383) + (remaining > 2_097_151)
    return 1 + length + remaining
