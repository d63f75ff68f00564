"""Write a file for `file_sd_configs` of Prometheus with the addresses of all metrics of a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.device.roles import DEVICE
from protofleet.deploy.fleet.settings import Fleet, coordinator_settings, device_settings
from protofleet.protocol.wire.names import COORDINATOR

TARGETS_FILE: Final = "targets.json"


def targets_text(fleet: Fleet, federation: str) -> str:
    """Return the hosts that serve metrics, with the labels that our dashboards and alerts use."""
    found = []
    for name in fleet.of_role(DEVICE.name):
        settings = device_settings(fleet, federation, name)
        if settings.metrics_port:
            address = _reached_at(settings.metrics_host, fleet.hosts[name].address)
            labels = {"job": "devices", "device": name}
            found.append({"targets": [f"{address}:{settings.metrics_port}"], "labels": labels})
    for name in fleet.of_role(COORDINATOR):
        own = coordinator_settings(fleet, federation)
        address = _reached_at(own.metrics_host, fleet.hosts[name].address)
        found.append({"targets": [f"{address}:{own.metrics_port}"], "labels": {"job": "coordinator"}})
    return json.dumps(found, indent=2) + "\n"


def write_targets(fleet: Fleet, federation: str, folder: Path) -> None:
    path, text = folder / TARGETS_FILE, targets_text(fleet, federation)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _reached_at(host: str, address: str) -> str:
    """Return the address at which Prometheus reaches the metrics of a host.

    If the host serves its metrics at all of its addresses, return its address in the fleet's file.
    """
    found = address if host in ("0.0.0.0", "::") else host
    return f"[{found}]" if ":" in found else found
