"""What somebody may have meant: a setting without its table, or a settings file given to another command."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.reader import SettingsError, read_toml

# Kind of a file -> what it is called, and the command that takes it.
KINDS: Final = {
    "run": "an experiment",
    "coordinator": "a coordinator's file",
    "device": "a device's file",
    "sweep": "a sweep of an experiment",
    "deploy plan --fleet": "the file of a fleet",
}
# Keys that only such a file has.
OF_A_COORDINATOR: Final = frozenset({"folder", "federation", "enrolled", "key", "limits", "class_names"})
OF_AN_EXPERIMENT: Final = frozenset({"base", "data", "devices", "domains"})
OF_A_DEVICE: Final = frozenset({"folder", "federation", "enrolled", "key", "coordinator_key", "stays"})


def kind_of(table: Mapping[str, Any]) -> str:
    """The command that takes such a file; "" where nothing tells."""
    keys = table.keys()
    if "hosts" in keys:
        return "deploy plan --fleet"
    if {"grid", "experiment"} <= keys:
        return "sweep"
    if "method" in keys:
        if OF_A_COORDINATOR & keys or isinstance(table.get("devices"), str):
            return "coordinator"
        return "run" if OF_AN_EXPERIMENT & keys else ""  # name, rounds and method alone may be either's
    if "base" in keys:
        return "run"
    return "device" if OF_A_DEVICE & keys and "rounds" not in keys else ""


@contextlib.contextmanager
def read_for(path: Path, *commands: str) -> Iterator[None]:
    """Where such a file cannot be used, and it is one of another command, that is what is said."""
    try:
        yield
    except SettingsError as error:
        try:
            kind = kind_of(read_toml(path))
        except SettingsError:
            raise error from None
        if not kind or kind in commands:
            raise
        verb = "takes" if kind.startswith("deploy") else "runs"
        raise SettingsError(f"{path} is {KINDS[kind]}; `protofleet {kind} {path}` {verb} it") from None


def places_of(key: str, settings: type, method: object) -> list[str]:
    """The settings of this name in the tables of a file that is decoded to such a class, its method's among them."""
    found = {}
    for table, hint in typing.get_type_hints(settings).items():
        for part in (hint, *typing.get_args(hint)):
            if isinstance(part, type) and dataclasses.is_dataclass(part):
                found[table] = part
    if isinstance(method, str) and method in names():
        found["method"] = load(method).Hyper
    return [
        f"{table}.{key}" for table, part in found.items() if key in {f.name for f in dataclasses.fields(part)}
    ]
