"""The plug-ins that a party may run: files and hashes in settings of its owner, or in settings signed by the root.

No message can add a plug-in: a plan only names hashes, and this module looks them up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.methods.plugins import file, packages
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.file import PluginFile
from protofleet.methods.plugins.paths import IN_SETTINGS

SHA256: Final = re.compile("[0-9a-f]{64}")
# Kinds that a plan names by a hash. Data are not among them, because each device chooses its own data.
PLANNED: Final = {"method": "method", "network": "network", "mutual": "network", "metrics": "metrics"}


@dataclass(frozen=True)
class PlugIns:
    """The [plugins] table: the Python files and packages that this party may run."""

    files: tuple[str, ...] = ()
    """Paths of files on this machine, each with one plug-in."""
    allow: tuple[str, ...] = ()
    """SHA-256 of each file and each installed package that this party may run."""

    def __post_init__(self) -> None:
        for number in self.allow:
            if not SHA256.fullmatch(number):
                raise ValueError(
                    f"allow has {number!r}, but an entry must be a SHA-256 of 64 hexadecimal digits, as "
                    "`sha256sum FILE` prints"
                )

    def hash_of(self, kind: str, name: str, path: str, ours: bool) -> str:
        """Return the hash of the plug-in in the settings of this machine, or "" if the settings have no plug-in.

        A plug-in from a file is loaded. Raise PlugInError if the plug-in is not allowed. `ours` is true if
        protofleet has its own object of this name.
        """
        if path:
            if ours:
                raise PlugInError(
                    f"{path} would have the name {name}, as protofleet's own {kind} has; give the plug-in "
                    "another name: "
                    f'{kind}.name = "my-{name}"'
                )
            return file.from_file(Path(path), self.allow, IN_SETTINGS)[0].sha256
        if ours:
            return ""
        if (own := next((one for one in self.files if Path(one).stem == name), "")) != "":
            return file.from_file(Path(own), self.allow, IN_SETTINGS)[0].sha256
        if (packaged := packages.installed(kind).get(name)) is None:
            return ""
        if packaged.sha256 not in self.allow:
            raise PlugInError(
                f"the {kind} {name} is from {packaged}, whose files have SHA-256 {packaged.sha256}. This hash is not "
                "allowed here; the owner of this machine can add it to plugins.allow"
            )
        return packaged.sha256

    def take(self, kind: str, name: str, sha256: str) -> None:
        """Load the plug-in that a plan names by its hash.

        Raise PlugInError, with a message for the coordinator, if this party must not or cannot load the plug-in.
        """
        what = f"the run's {kind} {name} is a plug-in with SHA-256 {sha256}"
        sources = self._sources()
        if sha256 in self.allow:
            if found := next((one for one in sources if one.sha256 == sha256), None):
                file.module_of(found)
                return
            packaged = packages.installed(kind).values()
            if any(one.sha256 == sha256 for one in packaged if kind == "metrics" or one.name == name):
                return
        named = (one for one in sources if one.path.stem == name and one.sha256 != sha256)
        if other := next(named, None):
            raise PlugInError(
                f"{what}, but the file {other.path.name} on this device has SHA-256 {other.sha256}"
            )
        if sha256 not in self.allow:
            raise PlugInError(
                f"{what}, which this device does not allow; its owner can add the hash to plugins.allow"
            )
        raise PlugInError(
            f"{what}, which this device allows but does not have; its owner can put the file into plugins.files"
        )

    def _sources(self) -> list[PluginFile]:
        """Return the files that can be read; a missing or wrong file does not stop the search."""
        found = []
        for path in self.files:
            try:
                found.append(file.read(Path(path)))
            except PlugInError:
                continue
        return found


def checked_hashes(found: object) -> dict[str, str]:
    """Return the `plugins` of a plan: kind -> SHA-256."""
    right = isinstance(found, Mapping) and all(
        kind in PLANNED and isinstance(number, str) and SHA256.fullmatch(number)
        for kind, number in found.items()
    )
    if not right:
        raise PlugInError(
            f"plan.plugins is {str(found)[:100]}, but it must be a table with a SHA-256 for one or more of "
            f"{', '.join(PLANNED)}; update protofleet on this machine"
        )
    assert isinstance(found, Mapping)
    return dict(found)
