"""Ship the plug-ins of a fleet, which are files on the operator's machine.

On the host, the files are next to the wheels. The settings allow each file by its hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofleet.methods.plugins import file
from protofleet.methods.plugins.paths import IN_SETTINGS, placed
from protofleet.protocol.settings.reader import SettingsError


def files_in(table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of the plug-in files in the settings of a host."""
    own = table.get("plugins")
    files = own.get("files", []) if isinstance(own, Mapping) else []
    found = tuple(one for one in files if isinstance(one, str)) if isinstance(files, (list, tuple)) else ()
    names = [Path(one).name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(
            f"plugins.files has two files with the name {twice[0]}, but all plug-in files are copied into the same "
            "folder; rename one of the two files"
        )
    return found


def with_hashes(table: Mapping[str, Any]) -> dict[str, Any]:
    """Add the hashes of the plug-in files to the settings.

    If the signed settings contained only the names of the files, the signature would allow any later content of
    the files. With the hashes, the signature allows only the present content.
    """
    files = files_in(table)
    if not files:
        return dict(table)
    own = table["plugins"]
    allow = [*own.get("allow", []), *(file.read(Path(one), IN_SETTINGS).sha256 for one in files)]
    return {**table, "plugins": {**own, "allow": list(dict.fromkeys(allow))}}


def at_the_host(table: Mapping[str, Any], files: Sequence[str], folder: str) -> dict[str, Any]:
    """Return the settings with the paths of the shipped files on the host."""
    return placed(table, {one: f"{folder}/{Path(one).name}" for one in files})


def put_beside_wheels(files: Sequence[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in files:
        source = file.read(Path(one), IN_SETTINGS)
        if (folder / source.path.name).exists():
            raise SettingsError(
                f"{one} has the same name as another shipped file; rename one of the two files"
            )
        (folder / source.path.name).write_bytes(source.text)
