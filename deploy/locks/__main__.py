"""python -m protofleet.deploy.locks: write the locks anew, from pyproject.toml and deploy/constraints.txt.

uv resolves for every Python and machine at once, and says the hash of every file of each version. It lives in an
environment of its own and is no dependency. `--wheels DIR` adds builds that are on no public index, as some of torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from protofleet.deploy.locks.lockfile import (
    LOCKS_FOLDER,
    LockedPackage,
    Wheel,
    read_lock,
    read_wheel,
    write_lock,
)
from protofleet.deploy.locks.tool_venv import install_tool

RESOLVER: Final = "uv==0.13.9"
SOURCE: Final = LOCKS_FOLDER.parent.parent
CONSTRAINTS: Final = LOCKS_FOLDER.parent / "constraints.txt"
DATA_REQUIREMENTS: Final = LOCKS_FOLDER.parent / "requirements-data.txt"
OLDEST_PYTHON: Final = "3.10"
TORCH_PACKAGES: Final = frozenset({"torch", "torchvision"})
BUILD_PACKAGES: Final = frozenset({"setuptools"})  # of our own wheel, as pyproject.toml asks for
CUDA_PREFIXES: Final = ("nvidia-", "cuda-", "triton")
HEADERS: Final = {
    "torch": "torch and torchvision",
    "cpu": "builds for CPUs alone, of PyTorch's own index",
    "cuda": "what torch's build for CUDA loads",
    "device": "what a device or a coordinator imports besides torch",
    "broker": "the extra `broker`",
    "dev": "the extra `dev`",
    "build": "what our own wheel is built with",
    "data": "packages that carry pictures",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m protofleet.deploy.locks", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".venv") / "locks", help="where uv is installed")
    wheels = "with more builds to allow"
    parser.add_argument("--wheels", type=Path, action="append", default=[], metavar="DIR", help=wheels)
    options = parser.parse_args(arguments)
    try:
        uv = install_tool(RESOLVER, options.folder, "--only-binary=:all:")
        locks = group_by_lock(lambda *more: resolve(uv, *more))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"locks: nothing was written: {reason_of(error)}", file=sys.stderr)
        return 1
    own = [wheel for folder in options.wheels for path in folder.glob("*.whl") if (wheel := read_wheel(path))]
    locks["cpu"] = cpu_builds(locks["torch"], LOCKS_FOLDER / "cpu.txt", own)
    for name, packages in locks.items():
        (LOCKS_FOLDER / f"{name}.txt").write_text(write_lock(packages, HEADERS[name]))
        print(f"{name}.txt: {len(packages)} packages")
    return 0


def reason_of(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{RESOLVER} was not installed in {error.timeout:g} s"
    return str(error.stderr or error.stdout or "no output").strip().splitlines()[-1]


def resolve(uv: Path, *more: str) -> list[LockedPackage]:
    """All packages that the project needs, with the extras or requirements that `more` names."""
    output = ("--generate-hashes", "--no-header", "--no-annotate", "-q")
    command = [str(uv), "pip", "compile", "--universal", "--python-version", OLDEST_PYTHON, *output]
    command += ["-c", str(CONSTRAINTS), *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SOURCE)
    return read_lock(done.stdout)


def group_by_lock(resolve: Callable[..., list[LockedPackage]]) -> dict[str, list[LockedPackage]]:
    """Each package is in the first lock that needs it."""
    project = str(SOURCE / "pyproject.toml")
    base = resolve(project)
    locks = {
        "torch": [p for p in base if p.name in TORCH_PACKAGES],
        "cuda": [p for p in base if p.name.startswith(CUDA_PREFIXES)],
    }
    locks["device"] = not_locked_in(base, locks.values())
    locks["broker"] = not_locked_in(resolve(project, "--extra", "broker"), locks.values())
    locks["dev"] = not_locked_in(resolve(project, "--extra", "broker", "--extra", "dev"), locks.values())
    locks["build"] = [p for p in base if p.name in BUILD_PACKAGES]
    locks["data"] = resolve("--no-deps", str(DATA_REQUIREMENTS))
    return locks


def not_locked_in(packages: list[LockedPackage], known: Iterable[list[LockedPackage]]) -> list[LockedPackage]:
    """A package that other locks have for some Pythons alone may be needed for all of them here."""
    locked = {(package.name, package.marker) for lock in known for package in lock}
    return [
        package for package in packages if not {(package.name, package.marker), (package.name, "")} & locked
    ]


def cpu_builds(packages: list[LockedPackage], lock: Path, wheels: list[Wheel]) -> list[LockedPackage]:
    """Builds of the locked versions from no public index: the given wheels, and those allowed before."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for old in read_lock(lock.read_text()) if lock.exists() else []:
        hashes[old.name, old.version] = set(old.hashes)
    for wheel in wheels:
        if wheel.version != wheel.public_version:
            hashes.setdefault((wheel.name, wheel.version), set()).add(wheel.hash)
    locked = {package.name: package.version for package in packages}
    return [
        LockedPackage(name, version, "", tuple(sorted(allowed)))
        for (name, version), allowed in sorted(hashes.items())
        if locked.get(name) == version.partition("+")[0]
    ]


if __name__ == "__main__":
    sys.exit(main())
