"""Define how frames are sent and received.

Code that uses this protocol works in the same way with MQTT and with the simulator, which passes frames in
memory.
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
    retained: bool = False  # True for a message that the broker retained before this client subscribed


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The event that the connection is lost.

    If `final` is true, the client does not connect again, for example because the broker does not allow this client.
    `cut` is true if another client with the same name may have ended the connection; `taken_over` is true if the
    broker has said so. A client that does not retry after a cut connects again when its owner says so.
    """

    reason: str
    final: bool = False
    cut: bool = False
    taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The event that the broker refused to deliver a frame (because of its ACL or its quota)."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The event that work on another thread has ended; `call` passes the result to the receiver of the event."""

    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The request to end this process, after a bye and a DISCONNECT were sent."""

    reason: str


Item: TypeAlias = Connected | Arrived | Disconnected | Denied | Done | StopRequest


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes as a retained message when this client's connection is lost."""

    topic: str
    frame: bytes


class Transport(Protocol):
    """A connection to the broker that sends frames.

    Each received frame and each event is put as an `Item` into one receive queue, which is an argument of the
    constructor.
    """

    @property
    def errors(self) -> CaughtErrors: ...

    @property
    def broker_certificate_ends(self) -> float | None:
        """Return the Unix time when the broker's certificate ends.

        This is the certificate that the broker showed at the last connect. Return None if the broker shows no
        certificate.
        """

    def subscribe(self, topic: str) -> None:
        """Subscribe to a topic now and after every reconnect."""

    def unsubscribe(self, topic: str) -> None: ...

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        """Publish a frame. If there is no connection, drop the frame: the layer above repeats important frames."""

    def reject_connection(self, why: str) -> None:
        """End this connection, which cannot be used, and try again after a pause that grows with each try."""

    def close(self) -> None: ...


def packet_bytes(topic: str, frame: int) -> int:
    """Return the exact size of an MQTT 5 PUBLISH at QoS 1 without properties.

    At QoS 0 the packet has two bytes less.
    """
    remaining = 2 + len(topic.encode()) + 2 + 1 + frame
    length = 1 + (remaining > 127) + (remaining > 16_383) + (remaining > 2_097_151)
    return 1 + length + remaining
