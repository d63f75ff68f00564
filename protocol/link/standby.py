"""Ask, before a coordinator's process leads, which coordinator leads the federation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.protocol.link.own_topic import opened_by_own_key
from protofleet.protocol.security.enrolment import STANDBY_CERT
from protofleet.protocol.security.envelope import MAJOR, MINOR, OPEN, Header, seal
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.transport.base import Transport
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import Probe, State, StepDown
from protofleet.protocol.wire.names import COORDINATOR, STANDBY
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

# A process that does not lead has claimed no epoch, so it cannot number its messages.
UNNUMBERED: Final = 0


def standby_client_id(federation: str) -> str:
    """Return the MQTT client id of a standby. A broker that identifies certificates uses the certificate's name."""
    return f"{federation}.{STANDBY}"


def standby_address(broker: BrokerAddress) -> BrokerAddress | None:
    """Return the address of a coordinator's broker with the files of a standby.

    Return None if the coordinator has a TLS certificate, but no second one beside it: an earlier release has enrolled
    the coordinator, and its enrolment was not renewed since. With the only certificate, a standby would end the
    connection of the coordinator that leads.
    """
    if broker.tls is None or broker.tls.cert is None:
        return broker
    cert = Path(broker.tls.cert).with_name(STANDBY_CERT)
    return replace(broker, tls=replace(broker.tls, cert=str(cert))) if cert.exists() else None


@dataclass(frozen=True, slots=True)
class SeenState:
    """A state that a coordinator of the federation has published."""

    epoch: int
    run: str
    state: State
    retained: bool  # True if the broker stored the message before this process subscribed


class StandbyLink:
    """The link of a coordinator's process that does not lead yet. It signs with the coordinator's key.

    Its transport receives `Topics.standby_subscriptions`.
    """

    def __init__(self, keys: Keys, topics: Topics, transport: Transport) -> None:
        self._keys, self._topics, self._transport = keys, topics, transport

    def probe(self) -> None:
        """Ask the coordinator that leads to publish its state."""
        self._send(Probe())

    def step_down(self, epoch: int, by: str) -> None:
        """Ask the coordinator of this epoch to end; `by` says where this process runs."""
        self._send(StepDown(epoch, by))

    def arrived(self, topic: str, frame: bytes, retained: bool) -> SeenState:
        """Return the state in a frame; raise Rejected if the coordinator's key has not signed it."""
        if topic != self._topics.coord_state:
            raise Rejected(Reason.WRONG_TOPIC, f"a frame came on {topic[:200]}")
        header, message = opened_by_own_key(self._keys, self._topics.federation, frame)
        if not isinstance(message, State):
            raise Rejected(Reason.MALFORMED, f"a {header.kind[:32]} came on {topic}")
        return SeenState(header.epoch, header.run, message, retained)

    def _send(self, message: Probe | StepDown) -> None:
        place = codec.task_id_of(message)
        header = Header(
            MAJOR, MINOR, OPEN, codec.KINDS[type(message)], self._topics.federation, "", UNNUMBERED, COORDINATOR,
            UNNUMBERED, UNNUMBERED, COORDINATOR, place.round, place.phase, place.base,
        )  # fmt: skip
        self._transport.publish(
            self._topics.coord_probe, seal(header, codec.encode(message), self._keys.sign)
        )
