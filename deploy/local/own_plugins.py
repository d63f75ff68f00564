"""The plug-ins of an experiment on this machine: who names a file in it may run it, and the run allows its hash.

Each run keeps the files that it ran in `plugins/` of its folder, so that it can be resumed, reported and compared
when the files themselves have changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.deploy.local.start.trial_load import demand_end
from protofleet.methods.plugins import file, packages
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.methods.plugins.file import Source
from protofleet.methods.plugins.paths import KEPT, placed
from protofleet.protocol.storage.disk import Disk

NO_NAMES: Final[Mapping[str, Sequence[str]]] = {}


@dataclass(frozen=True)
class OwnPlugIns:
    """Those that are loaded, by the file that the experiment names."""

    sources: Mapping[str, Source]
    packages: tuple[str, ...] = ()  # their hashes

    @property
    def hashes(self) -> tuple[str, ...]:
        return tuple(sorted({*(one.sha256 for one in self.sources.values()), *self.packages}))

    def allowed(self) -> PlugIns:
        """For all parties of the run."""
        return PlugIns(tuple(self.sources), self.hashes)

    def kept(self, table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Settings with the files that the run in this folder keeps, in place of those that were named."""
        return placed(table, {name: str(path) for name, path in self._kept_in(folder).items()})

    def as_named(self, text: str, folder: Path) -> str:
        """Words of the run in this folder, with the files of their author in the place of its copies."""
        for name, path in self._kept_in(folder).items():
            text = text.replace(str(path), name)
        return text

    def keep(self, folder: Path) -> None:
        """The very bytes that were hashed."""
        disk = Disk(durable=False)
        for name, path in self._kept_in(folder).items():
            disk.make(path.parent)
            disk.replace(path, self.sources[name].text)

    def _kept_in(self, folder: Path) -> dict[str, Path]:
        """Named file -> where the run has it: by its hash, as two may have one name."""
        return {name: folder / KEPT / one.sha256[:12] / Path(name).name for name, one in self.sources.items()}


def own_plugins(
    files: Sequence[str], names: Mapping[str, Sequence[str]] = NO_NAMES, seen: str = ""
) -> OwnPlugIns:
    """`files` are run; of `names`, kind -> names that are not ours, those are taken that a package has.

    `seen` is what is said of a file in settings that is not there.
    """
    sources = {path: _loaded(Path(path), seen) for path in dict.fromkeys(files) if path}
    found = [
        packaged.sha256
        for kind, wanted in names.items()
        for name in dict.fromkeys(wanted)
        if (packaged := packages.installed(kind).get(name)) is not None
    ]
    return OwnPlugIns(sources, tuple(found))


def _loaded(path: Path, seen: str) -> Source:
    """Run here once it has been run to its end in a process that nobody needs."""
    demand_end(file.read(path, seen))
    return file.from_file(path, allowed=None, seen=seen)[0]
