"""python -m protofleet.deploy.locks: write the locks anew, from pyproject.toml and deploy/constraints.txt.

uv resolves for every Python and machine at once, and says the hash of every file of each version. It lives in an
environment of its own and is no dependency. `--wheels DIR` adds builds that no common index has, as of torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from protofleet.deploy.locks.lockfile import HERE, Locked, Wheel, read_lock, read_wheel, write_lock
from protofleet.deploy.locks.tool import installed

RESOLVER: Final = "uv==0.13.9"
SOURCE: Final = HERE.parent.parent
CONSTRAINTS: Final = HERE.parent / "constraints.txt"
DATA: Final = HERE.parent / "requirements-data.txt"
OLDEST: Final = "3.10"
TORCH: Final = frozenset({"torch", "torchvision"})
BUILD: Final = frozenset({"setuptools"})  # of our own wheel, as pyproject.toml asks for
FOR_CUDA: Final = ("nvidia-", "cuda-", "triton")
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
    parser.add_argument("--folder", type=Path, default=Path(".venv") / "locks", help="where uv is put")
    parser.add_argument(
        "--wheels", type=Path, action="append", default=[], metavar="DIR", help="allowed as well"
    )
    options = parser.parse_args(arguments)
    try:
        uv = installed(RESOLVER, options.folder, "--only-binary=:all:")
        locks = grouped(lambda *more: resolved(uv, *more))
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or error.stdout or "no output").strip().splitlines()[-1]
        print(f"locks: nothing was written: {reason}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(
            f"locks: nothing was written: {RESOLVER} was not installed in {error.timeout:g} s",
            file=sys.stderr,
        )
        return 1
    wheels = [
        wheel for folder in options.wheels for path in folder.glob("*.whl") if (wheel := read_wheel(path))
    ]
    locks["cpu"] = for_cpus(locks["torch"], HERE / "cpu.txt", wheels)
    for name, packages in locks.items():
        (HERE / f"{name}.txt").write_text(write_lock(packages, HEADERS[name]))
        print(f"{name}.txt: {len(packages)} packages")
    return 0


def resolved(uv: Path, *more: str) -> list[Locked]:
    """All that is needed for the project with some extras, or for what else `more` names."""
    form = ("--generate-hashes", "--no-header", "--no-annotate", "-q")
    command = [str(uv), "pip", "compile", "--universal", "--python-version", OLDEST, *form]
    command += ["-c", str(CONSTRAINTS), *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SOURCE)
    return read_lock(done.stdout)


def grouped(resolve: Callable[..., list[Locked]]) -> dict[str, list[Locked]]:
    """Each package in the first lock that needs it."""
    project = str(SOURCE / "pyproject.toml")
    base = resolve(project)
    locks = {
        "torch": [p for p in base if p.name in TORCH],
        "cuda": [p for p in base if p.name.startswith(FOR_CUDA)],
    }
    locks["device"] = beyond(base, locks.values())
    locks["broker"] = beyond(resolve(project, "--extra", "broker"), locks.values())
    locks["dev"] = beyond(resolve(project, "--extra", "broker", "--extra", "dev"), locks.values())
    locks["build"] = [p for p in base if p.name in BUILD]
    locks["data"] = resolve("--no-deps", str(DATA))
    return locks


def beyond(packages: list[Locked], known: Iterable[list[Locked]]) -> list[Locked]:
    """What a lock has for some Pythons alone may be needed for all by the next."""
    there = {(package.name, package.marker) for lock in known for package in lock}
    return [
        package for package in packages if not {(package.name, package.marker), (package.name, "")} & there
    ]


def for_cpus(packages: list[Locked], lock: Path, wheels: list[Wheel]) -> list[Locked]:
    """Builds of the locked versions that are no common index's: those brought along, and those allowed before."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for old in read_lock(lock.read_text()) if lock.exists() else []:
        hashes[old.name, old.version] = set(old.hashes)
    for wheel in wheels:
        if wheel.version != wheel.public:
            hashes.setdefault((wheel.name, wheel.version), set()).add(wheel.hash)
    locked = {package.name: package.version for package in packages}
    return [
        Locked(name, version, "", tuple(sorted(allowed)))
        for (name, version), allowed in sorted(hashes.items())
        if locked.get(name) == version.partition("+")[0]
    ]


if __name__ == "__main__":
    sys.exit(main())
