"""Load the plug-ins of an experiment on this machine.

By naming a file in the experiment, the user allows this file, so the run allows its hash. Each run keeps
copies of its plug-ins in the folder `plugins`. With these copies, the run can be resumed, reported and
compared after the original files have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.lab.local.trial_load import demand_end
from protofleet.methods.plugins import file, packages
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.file import PluginFile
from protofleet.methods.plugins.paths import KEPT, placed
from protofleet.protocol.storage.disk import Disk

NO_NAMES: Final[Mapping[str, Sequence[str]]] = {}


@dataclass(frozen=True)
class OwnPlugIns:
    """The loaded plug-ins, by the path that the experiment names."""

    sources: Mapping[str, PluginFile]
    packages: tuple[str, ...] = ()  # The hashes of plug-ins that packages provide.

    @property
    def hashes(self) -> tuple[str, ...]:
        return tuple(sorted({*(one.sha256 for one in self.sources.values()), *self.packages}))

    def allowed(self) -> PlugIns:
        """Return the plug-ins that the coordinator and the devices of the run may run."""
        return PlugIns(tuple(self.sources), self.hashes)

    def kept(self, table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Return the settings with the paths of this run's copies in place of the paths that the user named."""
        return placed(table, {name: str(path) for name, path in self._kept_in(folder).items()})

    def as_named(self, text: str, folder: Path) -> str:
        """Replace the paths of the run's copies in a text by the paths that the user named."""
        for name, path in self._kept_in(folder).items():
            text = text.replace(str(path), name)
        return text

    def keep(self, folder: Path) -> None:
        """Write the copies of the plug-ins in the run's folder. Each copy has exactly the bytes that were hashed."""
        disk = Disk(durable=False)
        for name, path in self._kept_in(folder).items():
            disk.make(path.parent)
            disk.replace(path, self.sources[name].text)

    def _kept_in(self, folder: Path) -> dict[str, Path]:
        """Return the path of the run's copy of each plug-in, by the path that the user named.

        The path of a copy contains the hash, because two plug-ins may have the same file name.
        """
        return {name: folder / KEPT / one.sha256[:12] / Path(name).name for name, one in self.sources.items()}


def own_plugins(
    files: Sequence[str], names: Mapping[str, Sequence[str]] = NO_NAMES, seen: str = ""
) -> OwnPlugIns:
    """Load the plug-ins of an experiment.

    `files` has the paths of plug-ins to load. `names` maps each kind of plug-in to names that are not built in.
    If an installed package provides a plug-in with one of these names, the hash of this plug-in is added. `seen`
    names the folder at which relative paths start. The message about a missing file contains `seen`.
    """
    sources = {path: _loaded(Path(path), seen) for path in dict.fromkeys(files) if path}
    found = [
        packaged.sha256
        for kind, wanted in names.items()
        for name in dict.fromkeys(wanted)
        if (packaged := packages.installed(kind).get(name)) is not None
    ]
    return OwnPlugIns(sources, tuple(found))


def _loaded(path: Path, seen: str) -> PluginFile:
    """Load a plug-in. A child process loads it first, to check that loading it does not end the process."""
    demand_end(file.read(path, seen))
    return file.from_file(path, allowed=None, seen=seen)[0]
