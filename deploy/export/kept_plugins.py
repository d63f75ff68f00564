"""The plug-ins that a run keeps in its folder: an export runs them again, as `protofleet run --resume` does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.paths import KEPT
from protofleet.protocol.settings.reader import decode, read_toml

SETTINGS: Final = "coordinator.toml"


def plugins_of_run(folder: Path, named: PlugIns) -> PlugIns:
    """Those that its coordinator allowed, from the run's own copies: the folder may have been moved. And those that
    are named: a coordinator that runs as a service has its settings and its plug-ins elsewhere."""
    path = folder / SETTINGS
    said = read_toml(path).get("plugins") if path.exists() else None
    if not isinstance(said, dict):
        return named
    allowed = decode(PlugIns, said, f"{path}: plugins")
    copies = sorted(map(str, (folder / KEPT).glob("*/*.py")))
    return PlugIns((*copies, *allowed.files, *named.files), (*allowed.allow, *named.allow))
