"""Read and write the lock files, which list the packages to install, each with its version and hashes.

`python -m tools.locks` makes these files:

torch.txt    torch and torchvision; some hardware vendors have their own builds of these
cpu.txt      PyTorch's builds for CPUs only, used where pip finds such a build
cuda.txt     further packages that only PyTorch's build for CUDA needs
device.txt   the other packages that a device or a coordinator imports
broker.txt   the extra `broker`        dev.txt    the extra `dev`
build.txt    the packages that build our own wheel
data.txt     the packages of requirements-data.txt
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOCKS_FOLDER: Final = Path(__file__).parent
PIN: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?"
)
HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
WHEEL: Final = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(-[^-]+)?-[^-]+-[^-]+-[^-]+\.whl")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    name: str
    version: str
    marker: str  # Condition on the Python version and the machine; "" if the package is always needed.
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n    --hash=".join([f"{self.name}=={self.version}{marker}", *self.hashes])


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    version: str
    hash: str

    @property
    def public_version(self) -> str:
        """Return the public version, for example 2.13.0 for 2.13.0+cpu; both match `==2.13.0`."""
        return self.version.partition("+")[0]


def read_lock(text: str) -> list[LockedPackage]:
    """Return the packages in a lock file; raise ValueError if an entry is not a package with hashes."""
    found: list[LockedPackage] = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        first, *rest = block.splitlines()
        if first.startswith("#"):
            continue
        pin, hashes = PIN.fullmatch(first), HASH.findall("\n".join(rest))
        if pin is None or not hashes or len(hashes) != len(rest):
            raise ValueError(f"{first!r} is no `name==version` with a --hash=sha256:... on each line below")
        found.append(
            LockedPackage(normalized_name(pin["name"]), pin["version"], pin["marker"] or "", tuple(hashes))
        )
    return found


def pinned_versions(constraints: str) -> dict[str, set[str]]:
    """Return the versions of each package in the text of a constraints file.

    A package may have two versions, because the oldest supported Python may need an older version.
    """
    found: dict[str, set[str]] = {}
    for line in constraints.splitlines():
        if pin := PIN.match(line):
            found.setdefault(normalized_name(pin["name"]), set()).add(pin["version"])
    return found


def write_lock(packages: Iterable[LockedPackage], header: str) -> str:
    return f"# {header}; written by `python -m tools.locks`.\n" + "".join(f"{p}\n" for p in packages)


def read_wheel(path: Path) -> Wheel | None:
    """Return the name, version and hash of a wheel, or None if the file name is not the name of a wheel."""
    if (found := WHEEL.fullmatch(path.name)) is None:
        return None
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            total.update(piece)
    return Wheel(normalized_name(found["name"]), found["version"], f"sha256:{total.hexdigest()}")


def with_wheels(packages: Iterable[LockedPackage], wheels: Iterable[Wheel]) -> Iterator[LockedPackage]:
    """Yield the packages of a lock file, changed so that the user's own wheels can be installed.

    If a wheel has the locked version, the hash of the wheel is added. If all wheels have other versions, the last
    wheel replaces the locked package.
    """
    by_name: dict[str, list[Wheel]] = {}
    for wheel in wheels:
        by_name.setdefault(wheel.name, []).append(wheel)
    for package in packages:
        own = by_name.get(package.name, [])
        same = tuple(w.hash for w in own if w.public_version == package.version)
        if same or not own:
            yield LockedPackage(
                package.name, package.version, package.marker, tuple(dict.fromkeys((*package.hashes, *same)))
            )
        else:
            yield LockedPackage(package.name, own[-1].version, package.marker, tuple(w.hash for w in own))


def normalized_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
