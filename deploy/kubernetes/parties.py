"""Make the settings of the parties, with the paths of their pods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.kubernetes.federation import ChartFederation
from protofleet.deploy.stack.layout import ALL_INTERFACES, METRICS_PORT
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.board_settings import BoardSettings
from protofleet.federation.brokers.mosquitto import ListenerSettings, tls_settings
from protofleet.federation.enrol.local_federation import tls_files
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.experiment import coordinator_settings, device_settings
from protofleet.protocol.transport.address import BrokerAddress

BROKER_PORT: Final = 8883
# A node may pull images for minutes before the broker's pod starts.
BROKER_SECONDS: Final = 600.0


def coordinator_in_pod(federation: ChartFederation) -> CoordinatorSettings:
    experiment = replace(
        federation.experiment, metrics_port=METRICS_PORT, metrics_host=ALL_INTERFACES, page_port=0
    )
    local = coordinator_settings(
        experiment, _broker(federation, Path("/enrolled")), Path("runs"), "Mosquitto in a pod"
    )
    return replace(
        local, folder="/runs", enrolled="/enrolled", devices="/records", class_names=agreed_names(experiment),
        patience_seconds=BROKER_SECONDS,
    )  # fmt: skip


def device_in_pod(federation: ChartFederation, group: tuple[str, ...], name: str) -> DeviceSettings:
    keys = Path("/keys") / name
    local = device_settings(federation.experiment, name, _broker(federation, keys), Path("runs"))
    return replace(
        local, folder=f"/state/devices/{name}", enrolled=str(keys), features="", stays=federation.stays,
        metrics_port=METRICS_PORT + 1 + group.index(name), metrics_host=ALL_INTERFACES,
        board=BoardSettings(federation.experiment.devices.board_root, len(group)),
        patience_seconds=BROKER_SECONDS,
        durable=True,  # A lost node loses the files that are not synced.
    )  # fmt: skip


def broker_conf(federation: ChartFederation) -> str:
    """Return mosquitto.conf, with the paths of the broker's pod."""
    listener = ListenerSettings(BROKER_PORT, devices=sum(map(len, federation.groups)))
    return tls_settings(Path("/broker"), listener, Path("/state"))


def _broker(federation: ChartFederation, enrolled: Path) -> BrokerAddress:
    return BrokerAddress(federation.broker_host, BROKER_PORT, tls_files(enrolled))
