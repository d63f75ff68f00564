"""Frames in, frames out. This protocol hides whether MQTT carries them, or memory in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protofleet.protocol.transport.caught_errors import CaughtErrors


@dataclass(frozen=True, slots=True)
class Connected:
    """Connected to the broker, with the limits that it stated."""

    max_packet: int  # bytes; what the broker accepts in one PUBLISH packet
    receive_max: int


@dataclass(frozen=True, slots=True)
class Arrived:
    topic: str
    frame: bytes
    retained: bool = False  # the broker has kept it for whoever subscribes: it was said before


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost. `final`: do not try again (taken over, not allowed ...)."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Denied:
    """The broker took a frame and refused to pass it on (its ACL, its quota)."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Work on another thread has ended; `call` hands its result over."""

    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Stop:
    """This process is to end with a bye and a DISCONNECT."""

    reason: str


Item: TypeAlias = Connected | Arrived | Disconnected | Denied | Done | Stop


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, when this client's connection is lost."""

    topic: str
    frame: bytes


class Transport(Protocol):
    """Everything received comes out of one inbox, given at construction, as an `Item`."""

    @property
    def errors(self) -> CaughtErrors: ...

    @property
    def broker_certificate_ends(self) -> float | None:
        """A Unix time, of the certificate that the broker showed at the last connect; None where it shows none."""

    def subscribe(self, topic: str) -> None:
        """Ask for a topic now and after every reconnect."""

    def unsubscribe(self, topic: str) -> None: ...

    def publish(self, topic: str, frame: bytes, retain: bool = False, qos: int = 1) -> None:
        """While there is no connection the frame is dropped: the layer above asks again."""

    def reject_connection(self, why: str) -> None:
        """This connection cannot be used: end it, and try another after a pause that grows."""

    def close(self) -> None: ...


def packet_bytes(topic: str, frame: int) -> int:
    """Exact size of an MQTT 5 PUBLISH at QoS 1 without properties; at QoS 0 it has two bytes less."""
    remaining = 2 + len(topic.encode()) + 2 + 1 + frame
    length = 1 + (remaining > 127) + (remaining > 16_383) + (remaining > 2_097_151)
    return 1 + length + remaining
