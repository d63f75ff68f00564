"""List the TOML tables of all settings files, and find a table by its name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from protofleet.cli.explain import known_method
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.settings import Fleet
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import Overrides
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.sweep_file import SweepFile
from protofleet.lab.virtual.profiles import Profiles
from protofleet.methods.parts.local import LocalHyper
from protofleet.protocol.settings.described import ANY_NAME, tables
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

METHOD: Final = "method"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    title: str
    cls: type


FILES: Final = {
    "experiment": SettingsFile("an experiment", Experiment),
    "coordinator": SettingsFile("a coordinator", CoordinatorSettings),
    "device": SettingsFile("a device", DeviceSettings),
    "fleet": SettingsFile("a fleet", Fleet),
    "tuning": SettingsFile("a tuning", Overrides),
    "sweep": SettingsFile("a sweep", SweepFile),
    "profiles": SettingsFile("a profiles file", Profiles),
}


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """A TOML table in a kind of settings file. The path is empty for the keys at the top of the file."""

    file: str
    path: tuple[str, ...]
    cls: type

    @property
    def name(self) -> str:
        return ".".join((self.file, *self.path))

    @property
    def short(self) -> str:
        """Return the table's name without the kind of file; for the keys at the top of the file, return the kind."""
        return ".".join(self.path) or self.file


def file_tables() -> list[SettingsTable]:
    return [SettingsTable(file, path, cls) for file, of in FILES.items() for path, cls in tables(of.cls)]


def find(text: str) -> list[SettingsTable]:
    """Return the tables with this name; raise SettingsError if there is no such table.

    A full name such as `experiment.policy` names one table. A name without the kind of file, such as `policy`, may
    name the tables of several kinds of files.
    """
    name = text.strip("[]")
    head, _, method = name.partition(".")
    if head == METHOD:
        return [SettingsTable(METHOD, (method,), known_method(method)[0].Hyper)] if method else [LOCAL]
    known = file_tables()
    found = [one for one in known if _matches(name, one.name)]
    if not found:
        found = [one for one in known if _matches(name, one.short)]
    if not found:
        others = [*dict.fromkeys(one.short for one in known), METHOD, f"{METHOD}.{ANY_NAME}"]
        raise SettingsError(f"there is no table {text!r}; {there_are(name, others)}")
    return found


LOCAL: Final = SettingsTable(METHOD, (), LocalHyper)


def _matches(given: str, name: str) -> bool:
    """Return whether the text `given` matches the name of a table.

    The part NAME of a table's name matches any word. If NAME is the last part, `given` may leave it out.
    """
    words, parts = given.split("."), name.split(".")
    if parts[-1] == ANY_NAME and len(words) == len(parts) - 1:
        parts = parts[:-1]
    return len(words) == len(parts) and all(
        part in (word, ANY_NAME) for word, part in zip(words, parts, strict=True)
    )


def by_class(found: Iterable[SettingsTable]) -> Iterator[tuple[type, list[SettingsTable]]]:
    """Yield each class once, with all its tables."""
    groups: dict[type, list[SettingsTable]] = {}
    for table in found:
        groups.setdefault(table.cls, []).append(table)
    yield from groups.items()


def heading(found: Iterable[SettingsTable]) -> str:
    """Describe the places of tables of one class, such as "[network] of an experiment or a device"."""
    files: dict[str, list[str]] = {}
    for table in found:
        if table.file == METHOD:
            files[f"[{table.file}]"] = [
                f"the method {table.path[0]}" if table.path else "every method that trains on devices"
            ]
        else:
            place = f"[{'.'.join(table.path)}]" if table.path else "Top level"
            files.setdefault(place, []).append(FILES[table.file].title)
    return "; ".join(f"{place} of {_either(titles)}" for place, titles in files.items())


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
