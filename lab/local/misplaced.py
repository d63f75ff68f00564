"""Find two mistakes of a user: a setting outside its table, and a settings file given to the wrong command."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.service_settings import OF_THE_SERVICE
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.settings.reader import SettingsError, read_toml

# For each command, the kind of file that the command takes, in words.
KINDS: Final = {
    "run": "an experiment",
    "coordinator": "a coordinator's file",
    "device": "a device's file",
    "sweep": "a sweep of an experiment",
    "deploy plan --fleet": "the file of a fleet",
}
# Keys by which the settings file of a coordinator, an experiment or a device can be recognized.
OF_A_COORDINATOR: Final = frozenset({"folder", "federation", "enrolled", "key", "limits", "class_names"})
OF_AN_EXPERIMENT: Final = frozenset({"base", "data", "devices", "domains"})
OF_A_DEVICE: Final = frozenset({"folder", "federation", "enrolled", "key", "coordinator_key", "stays"})
OF_AN_OPERATOR: Final = frozenset(field.name for field in dataclasses.fields(OperatorSettings))


def kind_of(table: Mapping[str, Any]) -> str:
    """Return the command that takes a file with these keys; "" if these keys do not determine the command."""
    keys = table.keys()
    if "hosts" in keys:
        return "deploy plan --fleet"
    if {"grid", "experiment"} <= keys:
        return "sweep"
    if "method" in keys:
        if OF_A_COORDINATOR & keys or isinstance(table.get("devices"), str):
            return "coordinator"
        # A file with only name, rounds and method can be an experiment's file or a coordinator's file.
        return "run" if OF_AN_EXPERIMENT & keys else ""
    if "base" in keys:
        return "run"
    if isinstance(table.get("devices"), str):
        return "coordinator"
    # The file of a coordinator of submitted runs has keys of a device's file too, but no name.
    return "device" if OF_A_DEVICE & keys and "name" in keys and "rounds" not in keys else ""


@contextlib.contextmanager
def read_for(path: Path, *commands: str) -> Iterator[None]:
    """Execute the block, which reads a settings file for one of the commands in `commands`.

    If the block raises SettingsError and the file is for another command, raise a SettingsError that names the
    other command instead.
    """
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


@contextlib.contextmanager
def conducted_from(path: Path) -> Iterator[None]:
    """Execute the block, which starts a coordinator with the settings file `path`.

    If the block raises an error because keys are missing, and the file is a submitted experiment or an operator's
    file, raise a SettingsError that says so instead. Such a file can be read as a coordinator's file.
    """
    try:
        yield
    except ValueError as error:
        try:
            keys = read_toml(path).keys()
        except SettingsError:
            raise error from None
        if isinstance(error, KeyFileError) and "method" in keys and not keys & OF_THE_SERVICE:
            raise SettingsError(
                f"{path} is an experiment; `protofleet submit {path}` gives it to a running coordinator, and "
                f"`protofleet run {path}` runs it on this machine. A coordinator's file names its keys, too ({error})"
            ) from None
        if "enrolled" in keys and keys <= OF_AN_OPERATOR:
            raise SettingsError(
                f"{path} is an operator's file; name it with --operator, for example `protofleet runs --operator "
                f"{path}`. A coordinator's file names more, such as `federation` and `devices` ({error})"
            ) from None
        raise


def places_of(key: str, settings: type, method: object) -> list[str]:
    """Return the full names of all settings with this key, as table.key.

    The settings of the method are included.
    """
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
