"""Find the data of an experiment whose settings do not name any: the folder `data` next to the experiment's file.

The folder has one of two forms. Each device has its own folder, `data/<device>/<class>/<picture>`, or all
devices share the pictures, `data/<class>/<picture>`. In both forms, the pictures may be in `train/` and
`test/` folders, as in other image folders. A folder `data` with any other content is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.data.images.picture import SUFFIXES
from protofleet.edge_client.data.sources.folders import SPLIT_FOLDERS
from protofleet.protocol.settings.reader import SettingsError, Table, merge, override
from protofleet.protocol.wire.names import valid_device

FOLDER: Final = "data"
SAYS_WHERE: Final = ("source", "root", "domain", "file")  # Keys of [data] that say where the data are.


@dataclass(frozen=True)
class DataBeside:
    root: Path
    # Names of the devices that have their own folder; empty if all devices share the pictures of the root.
    devices: tuple[str, ...]
    classes: int

    def __str__(self) -> str:
        if not self.devices:
            return f"data: pictures of {self.classes} classes in {self.root}"
        names = ", ".join(self.devices[:8]) + (" ..." if len(self.devices) > 8 else "")
        return f"data: {len(self.devices)} devices, after their folders in {self.root}: {names}"

    def applied(self, table: Table) -> Table:
        """Return the settings of the file. Missing settings are taken from the content of the folder."""
        devices = table.get("devices", {})
        found: Table = {"data": {"source": "folder", "root": str(self.root)}}
        if not (table.get("data") or {}).get("classes"):
            found["classes"] = self.classes
        if self.devices and not devices.get("clients"):
            found["devices"] = {"clients": dict.fromkeys(self.devices, devices.get("per_domain", 1))}
        return merge(found, table)


def data_beside(table: Table, path: Path, assignments: Sequence[str]) -> DataBeside | None:
    """Return the data in the folder `data` next to the file whose settings are in `table`.

    Return None if the table or an assignment names the data, or if there is no such folder.
    """
    try:
        root, said = path.parent.absolute() / FOLDER, override(table, assignments)
    # An assignment is wrong. The decoder of the table will report this error with the name of the file.
    except SettingsError:
        return None
    data, devices = said.get("data", {}), said.get("devices", {})
    tables = isinstance(data, Mapping) and isinstance(devices, Mapping)
    if not tables or said.get("domains") or any(data.get(key) for key in SAYS_WHERE) or not root.is_dir():
        return None
    if is_domain(root):
        return DataBeside(root, (), number_of_classes(root))
    if not (found := [folder for folder in folders_in(root) if is_domain(folder)]):
        return None
    check_devices(found, devices, path)
    return DataBeside(root, tuple(folder.name for folder in found), number_of_classes(found[0]))


def check_devices(found: Sequence[Path], devices: Mapping[str, Any], path: Path) -> None:
    """Raise SettingsError if the folders do not fit the devices in the settings."""
    names = ", ".join(folder.name for folder in found[:8])
    if devices.get("count"):
        raise SettingsError(
            f"{path}: devices.count is {devices['count']}, but {found[0].parent} has a folder for each device "
            f"({names}); remove devices.count, or choose the data with data.source"
        )
    clients = devices.get("clients")
    if isinstance(clients, Mapping):
        if unknown := [name for name in clients if name not in {folder.name for folder in found}]:
            raise SettingsError(
                f"{path}: devices.clients has the device {unknown[0]!r}, but {found[0].parent} has only folders for "
                f"{names}; make a folder of this name, or choose the data with data.source"
            )
        return
    for folder in found:
        try:
            valid_device(folder.name.replace("_", "-"))
        except ValueError as error:
            raise SettingsError(
                f"{folder}: the name of the folder is the name of a device, but {error}"
            ) from None


def is_domain(folder: Path) -> bool:
    """Return whether the folder has a subfolder of pictures for each class.

    These subfolders may also be in `train/` and `test/`.
    """
    return any(has_pictures(kind) for kind in class_folders(folder))


def class_folders(folder: Path) -> list[Path]:
    inner = list(folders_in(folder))
    if {one.name for one in inner} in SPLIT_FOLDERS:
        return list(folders_in(folder / "train"))
    return inner


def number_of_classes(folder: Path) -> int:
    return len(class_folders(folder))


def has_pictures(folder: Path) -> bool:
    return any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())


def folders_in(folder: Path) -> Iterator[Path]:
    """Return the folders in a folder, sorted by name.

    Hidden folders are left out.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.name[0] != "." and path.is_dir())
    except OSError as error:
        raise SettingsError(f"{folder} cannot be read: {error.strerror}") from None
    yield from found
