"""Whether all who shall take part call their classes alike: compared from their settings, before anything starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.settings import Fleet, settings_of
from protofleet.deploy.local.experiment import Experiment, read_tables
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import class_names, stated
from protofleet.protocol.settings.reader import SettingsError, decode_file
from protofleet.protocol.wire.class_names import Names, difference, listed, normal
from protofleet.protocol.wire.names import COORDINATOR

COORDINATORS_OWN = CoordinatorSettings.__dataclass_fields__.keys() - Experiment.__dataclass_fields__.keys()


@dataclass(frozen=True, slots=True)
class Party:
    """Who has classes, and what they are called, as far as can be told here."""

    name: str
    names: Names = ()
    data: DataSettings | None = None
    classes: int = 0  # how many the settings say there are; 0: nothing
    elsewhere: str = ""  # where its data are, if not here


def agreed_names(experiment: Experiment) -> Names:
    """What all devices of an experiment call their classes. SettingsError where two differ."""
    parties = list(_of_experiment(experiment))
    demand_alike(parties)
    return next((party.names for party in parties if party.names), ())


def demand_alike(parties: Sequence[Party]) -> None:
    """SettingsError with the first difference. Who does not say what its classes are called is passed over."""
    named = [party for party in parties if party.names]
    for party in named[1:]:
        if words := difference(named[0].name, named[0].names, party.name, party.names):
            raise SettingsError(
                f"classes have other names: {words}. data.classes of each device can bring them into line"
            )
    for number in {party.classes for party in parties if party.classes}:
        if named and len(named[0].names) != number:
            raise SettingsError(
                f"classes is {number}, but {named[0].name} has {len(named[0].names)}: {listed(named[0].names)}; "
                "data.classes says which to keep"
            )


def parties_in(path: Path, assignments: list[str]) -> list[Party]:
    """From the settings of a device, a coordinator, a fleet or an experiment."""
    table = read_tables(path)
    if "hosts" in table:
        return list(_of_fleet(decode_file(Fleet, path, table, assignments)))
    if "method" not in table:
        settings = decode_file(DeviceSettings, path, table, assignments)
        return list(_of_data({settings.name: settings.data}))
    if COORDINATORS_OWN & table.keys() or isinstance(table.get("devices"), str):
        conducts = decode_file(CoordinatorSettings, path, table, assignments)
        return [Party(COORDINATOR, normal(conducts.class_names), classes=conducts.classes)]
    return list(_of_experiment(decode_file(Experiment, path, table, assignments)))


def _of_experiment(experiment: Experiment) -> Iterator[Party]:
    yield from _of_data(experiment.shards(), experiment.classes)


def _of_data(shards: Mapping[str, DataSettings], classes: int = 0) -> Iterator[Party]:
    """Data that cannot be read have a line of their own when they are loaded."""
    known: dict[tuple[str, str, str, Names], Names] = {}  # many devices share a folder
    for name, data in shards.items():
        key = (data.source, data.root, data.domain, data.classes)
        if key not in known:
            known[key] = ()
            with contextlib.suppress(DataError):
                known[key] = class_names(data)
        yield Party(name, known[key], data, classes)


def _of_fleet(fleet: Fleet) -> Iterator[Party]:
    """Their data are on the hosts: here is what their settings say."""
    federation = str(fleet.device.get("federation", "protofleet"))
    for name, host in fleet.hosts.items():
        data = settings_of(fleet, federation, name).data
        yield Party(name, normal(stated(data)), data, elsewhere=f"at {host.address}")
