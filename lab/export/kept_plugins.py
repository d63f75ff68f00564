"""Find the plug-ins that a run keeps in its folder.

An export runs them again, as `protofleet run --resume` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.paths import KEPT
from protofleet.protocol.settings.reader import decode, read_toml

SETTINGS: Final = "coordinator.toml"


def plugins_of_run(folder: Path, named: PlugIns) -> PlugIns:
    """Return the plug-ins that the coordinator of a run allowed, and the plug-ins in `named`.

    The run's folder has copies of the plug-in files. If the folder was moved, the run's settings contain wrong paths
    of these copies. So the result also has the present paths of the copies.

    If the coordinator ran as a service, its settings and plug-ins are in another folder. In that case the user must
    name the plug-ins.
    """
    path = folder / SETTINGS
    said = read_toml(path).get("plugins") if path.exists() else None
    if not isinstance(said, dict):
        return named
    allowed = decode(PlugIns, said, f"{path}: plugins")
    copies = sorted(map(str, (folder / KEPT).glob("*/*.py")))
    return PlugIns((*copies, *allowed.files, *named.files), (*allowed.allow, *named.allow))
