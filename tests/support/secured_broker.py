"""Enrolled federations on real, secured Mosquittos."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protofleet.federation.brokers.local import LocalBroker, MutualTls
from protofleet.federation.enrol.local_federation import LocalFederation, enrol_federation
from protofleet.protocol.link.standby import standby_address
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import COORDINATOR, STANDBY


@dataclass
class Enrolled:
    """An enrolled fleet and the broker that accepts no other clients."""

    fleet: LocalFederation
    federation: str
    broker: LocalBroker

    def address(self, name: str) -> BrokerAddress:
        if name == STANDBY:
            address = standby_address(self.address(COORDINATOR))
            assert address is not None, "the coordinator has no second certificate"
            return address
        return replace(self.broker.address, tls=self.fleet.tls(name))


def start_enrolled(folder: Path, *devices: str, more: Sequence[str] = ()) -> Enrolled:
    """Enrol devices and start a Mosquitto for them; the caller must stop that broker.

    `more` has further lines for the settings file of the broker.
    """
    federation = f"f{uuid.uuid4().hex[:8]}"
    fleet = enrol_federation(folder, federation, devices)
    mutual_tls = MutualTls(fleet.folder_of("broker"), fleet.tls(COORDINATOR))
    broker = LocalBroker(folder / "logs", "mosquitto", mutual_tls=mutual_tls, extra_lines=more)
    broker.start()
    return Enrolled(fleet, federation, broker)
