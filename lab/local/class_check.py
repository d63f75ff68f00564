"""Check before a run starts that the settings give all participants the same class names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import NO_PLUGINS, class_names
from protofleet.lab.local.data_beside import folders_in, is_domain, number_of_classes
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.class_names import Names, difference, listed

MOST_SHOWN: Final = 8  # Maximum number of domains in a message.


@dataclass(frozen=True, slots=True)
class Participant:
    """A device or a coordinator whose class names are compared with the names of the other participants."""

    name: str
    names: Names = ()  # The names of the classes; empty if this machine does not know them.
    data: DataSettings | None = None
    classes: int = 0  # The number of classes in the settings; 0 if the settings do not have this number.
    plugins: PlugIns = NO_PLUGINS  # The plug-ins that the participant may run to load its data.
    remote_location: str = ""  # The machine that has the data; "" if the data are on this machine.


def agreed_names(experiment: Experiment) -> Names:
    """Return the class names that all devices of an experiment share.

    If two devices have different names, a SettingsError is raised.
    """
    participants = list(participants_of(experiment))
    require_same_classes(participants)
    return next((participant.names for participant in participants if participant.names), ())


def require_same_classes(participants: Sequence[Participant]) -> None:
    """Raise SettingsError for the first difference between the class names of two participants.

    A participant whose class names are not known is not checked.
    """
    named = [participant for participant in participants if participant.names]
    for participant in named[1:]:
        if message := difference(named[0].name, named[0].names, participant.name, participant.names):
            raise SettingsError(
                f"class names differ: {message}. Set data.classes to the same list of names on each device"
            )
    for number in {participant.classes for participant in participants if participant.classes}:
        if named and len(named[0].names) != number:
            first = named[0]
            raise SettingsError(
                f"classes is {number}, but {first.name} has {len(first.names)} classes: {listed(first.names)}; "
                f"{hint_at_domains(first.data, number) or 'list the classes to keep in data.classes'}"
            )


def hint_at_domains(data: DataSettings | None, classes: int) -> str:
    """Return a hint for the user if the folders in data.root are domains or devices, and not classes.

    A folder in the root counts as a domain if it holds the given number of classes. If no folder is a domain,
    return "".
    """
    if data is None or data.source != "folder" or data.domain or not data.root:
        return ""
    root = Path(data.root).expanduser()
    found = [
        folder for folder in folders_in(root) if is_domain(folder) and number_of_classes(folder) == classes
    ]
    if not found:
        return ""
    names = [folder.name for folder in found]
    clients = ", ".join(f"{json.dumps(name, ensure_ascii=False)} = 1" for name in names[:MOST_SHOWN])
    clients += ", ..." if len(names) > MOST_SHOWN else ""
    return (
        f"each of these is a folder of {classes} classes: devices.clients = {{ {clients} }} makes a device of each, "
        f'data.domain = "{names[0]}" takes one alone'
    )


def participants_of(experiment: Experiment) -> Iterator[Participant]:
    yield from participants_with(experiment.shards, experiment.classes, experiment.own_plugins.allowed())


def participants_with(
    shards: Mapping[str, DataSettings], classes: int = 0, plugins: PlugIns = NO_PLUGINS
) -> Iterator[Participant]:  # fmt: skip
    """Yield a participant for each device of this machine.

    If the data of a device cannot be read, its class names stay empty. The device reports that error when it
    loads the data.
    """
    # Several devices may share a folder, so each folder is read only once.
    known: dict[tuple[str, str, str, Names], Names] = {}
    for name, data in shards.items():
        key = (data.source, data.root, data.domain, data.classes)
        if key not in known:
            known[key] = ()
            with contextlib.suppress(DataError):
                known[key] = class_names(data)
        yield Participant(name, known[key], data, classes, plugins)
