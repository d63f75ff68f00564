"""Find the participants that are named in a settings file of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.device.roles import DEVICE
from protofleet.deploy.fleet.settings import Fleet, device_settings
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import configured_class_names
from protofleet.lab.local.class_check import Participant, participants_of, participants_with
from protofleet.lab.local.experiment import Experiment, read_experiment, read_with_bases
from protofleet.methods.plugins.paths import seen_from
from protofleet.protocol.settings.reader import decode_file
from protofleet.protocol.wire.class_names import normalized
from protofleet.protocol.wire.names import COORDINATOR

COORDINATOR_KEYS = CoordinatorSettings.__dataclass_fields__.keys() - Experiment.__dataclass_fields__.keys()


def participants_in(path: Path, assignments: list[str]) -> list[Participant]:
    """Return the participants in the settings of a device, a coordinator, a fleet or an experiment."""
    table = seen_from(read_with_bases(path), path.parent)
    if "hosts" in table:
        return list(_from_fleet(decode_file(Fleet, path, table, assignments)))
    if "method" not in table:
        settings = decode_file(DeviceSettings, path, table, assignments)
        return list(participants_with({settings.name: settings.data}, plugins=settings.plugins))
    if COORDINATOR_KEYS & table.keys() or isinstance(table.get("devices"), str):
        coordinator = decode_file(CoordinatorSettings, path, table, assignments)
        return [Participant(COORDINATOR, normalized(coordinator.class_names), classes=coordinator.classes)]
    return list(participants_of(read_experiment(path, assignments)))


def _from_fleet(fleet: Fleet) -> Iterator[Participant]:
    """Yield a participant for each device of a fleet.

    The data are on the hosts, so this machine knows only the class names in the settings.
    """
    federation = str(fleet.device.get("federation", "protofleet"))
    for name in fleet.of_role(DEVICE.name):
        host = fleet.hosts[name]
        data = device_settings(fleet, federation, name).data
        yield Participant(
            name, normalized(configured_class_names(data)), data, remote_location=f"at {host.address}"
        )
