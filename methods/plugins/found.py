"""Find the object that a loaded plug-in defines, by the kind, the name and the hash of the plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from protofleet.methods.plugins import file, packages
from protofleet.methods.plugins.errors import PlugInError, file_of

# Kind -> an example of the line that the file must have.
SAYS: Final[Mapping[str, str]] = {
    "method": "METHOD = Method(...)",
    "network": "NETWORK = network(...)",
    "data": "DATA = a function that gives Data(...)",
    "metrics": 'METRICS = {"name": a function of scores and labels}',
}


LONGEST: Final = 60  # The largest number of characters of a wrong value in a message.


def object_of(kind: str, module: ModuleType) -> Any:
    """Return METHOD, NETWORK, DATA or METRICS of a file."""
    says = SAYS[kind]
    name = says.partition(" ")[0]
    if not hasattr(module, name):
        raise PlugInError(f"{Path(file_of(module)).name} has no {says}")
    return getattr(module, name)


def find(kind: str, name: str, sha256: str, wanted: Any) -> Any:
    """Return the object of a plug-in that this process has loaded.

    The plug-in is a file that the process has run, or an installed package whose files have this hash.
    `wanted` is the type that the object must have.
    """
    if (module := file.loaded(sha256)) is not None:
        found, where = object_of(kind, module), Path(file_of(module)).name
    elif (packaged := packages.installed(kind).get(name)) is not None and packaged.sha256 == sha256:
        found, where = packaged.load(), str(packaged)
    else:
        raise PlugInError(f"the {kind} {name} is a plug-in with SHA-256 {sha256}, which is not loaded here")
    demand_type(found, wanted, kind, where)
    return found


def demand_type(found: object, wanted: Any, kind: str, where: str) -> None:
    if not isinstance(found, wanted):
        says = SAYS[kind]
        raise PlugInError(f"{where}: {says.partition(' ')[0]} is {_described(found)}; write {says}")


def _described(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    return f"{type(found).__name__} ({repr(found)[:LONGEST]})"
