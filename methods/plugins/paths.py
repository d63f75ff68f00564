"""Paths of plug-in files in settings. A path in a TOML file is relative to the folder of this TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# Tables of settings in which `file` is the path of a plug-in.
TABLES: Final = ("method", "network", "mutual", "data", "metrics")
KEPT: Final = "plugins"  # Name of the folder, in a run's folder, with the plug-in files that the run used.
# A hint for a user whose settings name a missing file. `seen_from` makes the paths in a TOML file absolute, so a path
# that is still relative is from a command or a program.
IN_SETTINGS: Final = "a path in a TOML file is relative to the folder of that file"


def seen_from(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the same settings with absolute paths.

    A value that is not a path stays unchanged; the decoder of the table checks it later.
    """
    changed = dict(table)
    for key in TABLES:
        if isinstance(place := table.get(key), dict) and isinstance(place.get("file"), str) and place["file"]:
            changed[key] = {**place, "file": _whole(folder, place["file"])}
    if isinstance(own := table.get("plugins"), dict) and isinstance(files := own.get("files"), list):
        whole = [_whole(folder, one) if isinstance(one, str) else one for one in files]
        changed["plugins"] = {**own, "files": whole}
    return changed


def placed(table: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of the settings in which each path is replaced by its new path in `places`, if there is one."""

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return places.get(value, value)
        return [changed(one) for one in value] if isinstance(value, list) else value

    return {
        key: {k: changed(v) if k in ("file", "files") else v for k, v in value.items()}
        if key in (*TABLES, "plugins") and isinstance(value, Mapping)
        else value
        for key, value in table.items()
    }


def _whole(folder: Path, path: str) -> str:
    return str(folder.absolute() / Path(path).expanduser())
