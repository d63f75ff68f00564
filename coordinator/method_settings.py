"""A check of settings: each file or option may set only settings that the method of the run has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from protofleet.methods.contract.catalog import load, names
from protofleet.protocol.settings.reader import SettingsError, Table, line_of, merge, override
from protofleet.protocol.settings.suggest import there_are

# Settings of the training on a device. They mean the same for each method that trains, so they stay when the method
# changes. A method that trains nothing ignores those that were set before it was named.
OF_ALL_METHODS: Final = frozenset({"epochs", "batch", "lr", "momentum", "weight_decay", "clip"})
IDENTITY: Final = ("name", "file")


@dataclass(frozen=True)
class Layer:
    """The settings of one file, or the settings in the assignments of one command-line option."""

    where: str
    table: Mapping[str, Any]
    file: Path | None = None  # The file from which `table` was read, if there is one.

    @property
    def method(self) -> Mapping[str, Any]:
        table = self.table.get("method")
        return table if isinstance(table, Mapping) else {}

    def place(self, key: str) -> str:
        """Return FILE:LINE for the line that sets this key of [method], or only FILE if the line is not known."""
        line = line_of(self.file.read_text("utf-8-sig"), ("method", key)) if self.file else 0
        return f"{self.where}:{line}" if line else self.where


@dataclass
class _Owners:
    """The owners of the keys. An owner is the layer that set the key, with the method chosen at that moment."""

    setters: dict[str, tuple[Layer, str]] = field(default_factory=dict)
    named: str = ""
    layer: Layer | None = None  # The layer of settings that set the method's name last.
    is_plugin: bool = False

    def add(self, layer: Layer) -> None:
        file, name = layer.method.get("file"), layer.method.get("name")
        # A later layer may replace the file of a plug-in. Then the method keeps its name.
        if name or (file and not self.is_plugin):
            self.named, self.layer = str(name or Path(str(file)).stem), layer
        self.is_plugin = bool(file) or (self.is_plugin and not name)
        self.setters |= dict.fromkeys(layer.method, (layer, self.named))


def require_own_settings(
    layers: Sequence[Layer], path: Path, assignments: Sequence[str], option: str = "--set"
) -> None:
    """Apply the check of `demand_own_settings` to files and to the assignments of an option."""
    whole: Table = {}
    for layer in layers:
        whole = merge(whole, layer.table)
    if not assignments:
        return demand_own_settings(layers, whole)
    try:
        top, whole = override({}, assignments), override(whole, assignments)
    # The code that decodes the table raises the same error again, with the name of the file.
    except SettingsError:
        return
    demand_own_settings([*layers, Layer(f"{path} with {option}", top)], whole)


def demand_own_settings(layers: Sequence[Layer], whole: Table) -> None:
    """Raise SettingsError if a layer has a setting that was meant for a method other than the final method."""
    final = whole.get("method")
    if not isinstance(final, Mapping):
        return
    owners = _Owners()
    for layer in layers:
        owners.add(layer)
    _demand_one_identity(owners, final)
    for key, (layer, owner) in owners.setters.items():
        if key in final and key not in OF_ALL_METHODS and key not in IDENTITY and owner != owners.named:
            raise SettingsError(_not_its_own(key, layer, owner, owners))
    _demand_known(owners, final)


def _demand_one_identity(owners: _Owners, final: Mapping[str, Any]) -> None:
    """Raise SettingsError if one layer names a Python file and another layer names a built-in method.

    It would be unclear whether the file or the built-in method is meant.
    """
    if final.get("file") and final.get("name") in names():
        (file, _), (name, _) = owners.setters["file"], owners.setters["name"]
        if file is not name:
            raise SettingsError(
                f"{file.place('file')}: method.file is {final['file']!r}, but {name.place('name')} names "
                f"{final['name']}, which is a method without a file; set name and file in the same place, and set "
                "file = '' for a method without a file"
            )


def _not_its_own(key: str, layer: Layer, owner: str, owners: _Owners) -> str:
    place, key = layer.place(key), f"method.{key}"
    if owners.layer is None:
        return (
            f'{place}: {key} belongs to one method, and none is named; set method.name, for example "fedlsa"'
        )
    by = owners.layer.place("name" if "name" in owners.layer.method else "file")
    if not owner:
        return (
            f"{place}: {key} belongs to one method, and this file names none ({by} names {owners.named}); set "
            f"method.name there too, or move {key} to where the method is named"
        )
    known = _settings_of(owners.named)
    way_out = "take a base without it"
    if known is None or key.removeprefix("method.") in known:
        way_out = f"set {key} for {owners.named} there, or {way_out}"
    return (
        f"{place}: {key} is set for {owner}, and {by} names {owners.named}, which takes no settings of another "
        f"method; {way_out}"
    )


def _settings_of(method: str) -> list[str] | None:
    """Return the names of the settings of a method; None if the method is a plug-in.

    The settings of a plug-in are known only after the plug-in is loaded.
    """
    return sorted(one.name for one in fields(load(method).Hyper)) if method in names() else None


def without_unused(table: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the settings of a method, without settings of the local training if the method does not train."""
    known = None if table.get("file") else _settings_of(method)
    return {k: v for k, v in table.items() if known is None or k in known or k not in OF_ALL_METHODS}


def _demand_known(owners: _Owners, final: Mapping[str, Any]) -> None:
    """Raise SettingsError if a layer sets a setting that the method does not have; the message names the line."""
    known = _settings_of(owners.named)
    if final.get("file") or known is None:
        return
    for key, (layer, owner) in owners.setters.items():
        if key in OF_ALL_METHODS and owner != owners.named:
            continue
        if key in final and key not in known and key not in IDENTITY:
            raise SettingsError(
                f"{layer.place(key)}: method.{key} is not a setting of {owners.named}; {there_are(key, known)}"
            )
