"""Check before a start, by the settings, that all participants have the same class names."""

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

MOST_SHOWN: Final = 8  # Number of domains that a message lists at most.


@dataclass(frozen=True, slots=True)
class Participant:
    """A device or a coordinator, with its class names if this machine knows them."""

    name: str
    names: Names = ()  # Empty if the names are not known on this machine.
    data: DataSettings | None = None
    classes: int = 0  # The number of classes in the settings; 0 if it is not set.
    plugins: PlugIns = NO_PLUGINS  # The plug-ins that the participant may run to get its data.
    remote_location: str = ""  # The place of the data; "" if they are on this machine.


def agreed_names(experiment: Experiment) -> Names:
    """Return the class names of all devices of an experiment.

    SettingsError is raised if two devices have different names.
    """
    participants = list(participants_of(experiment))
    require_same_classes(participants)
    return next((participant.names for participant in participants if participant.names), ())


def require_same_classes(participants: Sequence[Participant]) -> None:
    """Raise SettingsError for the first difference between class names.

    A participant whose class names are not known is skipped.
    """
    named = [participant for participant in participants if participant.names]
    for participant in named[1:]:
        if message := difference(named[0].name, named[0].names, participant.name, participant.names):
            raise SettingsError(
                f"class names differ: {message}. Set data.classes on each device to the names to keep, in one order"
            )
    for number in {participant.classes for participant in participants if participant.classes}:
        if named and len(named[0].names) != number:
            first = named[0]
            raise SettingsError(
                f"classes is {number}, but {first.name} has {len(first.names)}: {listed(first.names)}; "
                f"{hint_at_domains(first.data, number) or 'data.classes says which to keep'}"
            )


def hint_at_domains(data: DataSettings | None, classes: int) -> str:
    """Return a hint for the user if the folders hold domains or devices, and not classes.

    A folder in the root is a domain if it holds the given number of classes. Return "" if no folder is a
    domain.
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

    The class names of a device stay empty if its data cannot be read. The device reports that error when it
    loads the data.
    """
    # Several devices may share a folder. Each folder is read once.
    known: dict[tuple[str, str, str, Names], Names] = {}
    for name, data in shards.items():
        key = (data.source, data.root, data.domain, data.classes)
        if key not in known:
            known[key] = ()
            with contextlib.suppress(DataError):
                known[key] = class_names(data)
        yield Participant(name, known[key], data, classes, plugins)
