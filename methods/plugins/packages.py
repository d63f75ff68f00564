"""Plug-ins of installed packages, which are listed by their entry points without running their code.

The hash of a package is over its installed files. The files must match the RECORD of the package.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from protofleet.methods.plugins.errors import PlugInError, guarded

GROUPS: Final[Mapping[str, str]] = {
    "method": "protofleet.methods",
    "network": "protofleet.networks",
    "data": "protofleet.data",
    "metrics": "protofleet.metrics",
    "tracker": "protofleet.trackers",
}


@dataclass(frozen=True)
class Packaged:
    """One entry point, which is imported only by `load`."""

    kind: str
    name: str
    package: str
    version: str
    entry: EntryPoint = field(compare=False)

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    @property
    def sha256(self) -> str:
        return digest_of(self)

    def load(self) -> Any:
        files = {str(path) for path, _ in _files(self)}
        return guarded(self.entry.load, f"{self.kind} {self.name} of {self}", files)


def installed(kind: str) -> dict[str, Packaged]:
    """Return the plug-ins of installed packages by name.

    If two packages have plug-ins with the same name, the package whose own name sorts first wins.
    """
    found = [
        Packaged(kind, entry.name, entry.dist.name, entry.dist.version, entry)
        for entry in entry_points(group=GROUPS[kind])
        if entry.dist is not None
    ]
    return {one.name: one for one in sorted(found, key=lambda one: one.package, reverse=True)}


def modules() -> frozenset[str]:
    """Return the first names of the modules that contain plug-ins.

    Error messages contain these names, and errors may be frequent. Reading the installed packages takes 20 ms or
    more, so the result is kept for each search path of Python.
    """
    return _modules_on(tuple(sys.path))


@lru_cache(maxsize=4)
def _modules_on(path: tuple[str, ...]) -> frozenset[str]:
    """Return the result of `modules` for one search path of Python."""
    found = {
        entry.module.partition(".")[0] for group in GROUPS.values() for entry in entry_points(group=group)
    }
    return frozenset(found - {"protofleet"})


def clashes(kind: str, ours: list[str]) -> list[str]:
    """Return a warning for each plug-in that is not used because protofleet has an object of the same name."""
    return [
        f"{kind} {name} of {one} is not used: protofleet has one of this name"
        for name, one in sorted(installed(kind).items())
        if name in ours
    ]


def digest_of(one: Packaged) -> str:
    """Return the hash over the sorted list of the package's files, each with the hash of its bytes.

    Raise PlugInError if a file was changed after the installation.
    """
    lines = []
    for path, recorded in sorted(_files(one)):
        try:
            found = hashlib.sha256(path.read_bytes())
        except OSError as error:
            raise PlugInError(
                f"{one}: {path} cannot be read: {error.strerror}; install the package again"
            ) from None
        if recorded and recorded != found.digest():
            raise PlugInError(f"{one}: {path} was changed since it was installed; install the package again")
        lines.append(f"{found.hexdigest()}  {_relative(path, one.entry.dist)}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _files(one: Packaged) -> Iterator[tuple[Path, bytes]]:
    """Yield each file and its hash in RECORD.

    The RECORD of an editable package does not list the source files. For such a package, yield the files in the
    folder of the module.
    """
    dist, top = one.entry.dist, one.entry.module.partition(".")[0]
    assert dist is not None
    listed = False
    for file in dist.files or ():
        if ".dist-info" in file.parts[0] or file.suffix == ".pyc" or ".." in file.parts:
            continue
        listed = listed or file.parts[0] in (top, f"{top}.py")
        digest = file.hash.value if file.hash and file.hash.mode == "sha256" else ""
        yield Path(str(dist.locate_file(file))), base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
    if not listed:
        spec = importlib.util.find_spec(top)
        origin = Path(spec.origin) if spec and spec.origin else None
        if origin is None:
            raise PlugInError(f"{one}: its module {top} does not exist; install the package again")
        found = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
        yield from ((path, b"") for path in found)


def _relative(path: Path, dist: Distribution | None) -> str:
    """Return the path of a file relative to the folder of the packages, which is the same on every machine."""
    assert dist is not None
    root = Path(str(dist.locate_file("")))
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
