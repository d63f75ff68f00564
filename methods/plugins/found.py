"""What a plug-in is of each kind, and how its name and hash give it in a process that has taken it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from protofleet.methods.plugins import file, packages
from protofleet.methods.plugins.errors import PlugInError, file_of

# kind -> what the file has to say, as an author writes it
SAYS: Final[Mapping[str, str]] = {
    "method": "METHOD = Method(...)",
    "network": "NETWORK = network(...)",
    "data": "DATA = a function that gives Data(...)",
    "metrics": 'METRICS = {"name": a function of scores and labels}',
}


def object_of(kind: str, module: ModuleType) -> Any:
    """METHOD, NETWORK, DATA or METRICS of a file."""
    says = SAYS[kind]
    name = says.partition(" ")[0]
    if not hasattr(module, name):
        raise PlugInError(f"{Path(file_of(module)).name} has no {says}")
    return getattr(module, name)


def find(kind: str, name: str, sha256: str) -> Any:
    """What this process has taken: a file that it has run, or an installed package whose files have this hash."""
    if (module := file.loaded(sha256)) is not None:
        return object_of(kind, module)
    packaged = packages.installed(kind).get(name)
    if packaged is not None and packaged.sha256 == sha256:
        return packaged.load()
    raise PlugInError(f"the {kind} {name} is a plug-in with SHA-256 {sha256}, which is not loaded here")


def demand_type(found: object, wanted: type, kind: str, where: str) -> None:
    if not isinstance(found, wanted):
        says = SAYS[kind]
        raise PlugInError(f"{where}: {says.partition(' ')[0]} is {type(found).__name__}; say {says}")
