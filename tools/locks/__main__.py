"""python -m tools.locks: write the lock files again, from pyproject.toml and runtime/constraints.txt.

uv resolves the versions for all Python versions and machines in one step, and lists the hash of every file of
each version. uv is installed in its own environment and is no dependency of the project. `--wheels DIR` adds
builds that are on no public index, such as some builds of torch. `--check` writes nothing: it asks the index
whether every locked package can be installed for each Python and machine.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from protofleet.runtime.locks.lockfile import (
    LOCKS_FOLDER,
    LockedPackage,
    Wheel,
    read_lock,
    read_wheel,
    write_lock,
)
from tools.locks.tool_venv import install_tool

RESOLVER: Final = "uv==0.13.9"
SOURCE: Final = LOCKS_FOLDER.parent.parent
CONSTRAINTS: Final = LOCKS_FOLDER.parent / "constraints.txt"
# The tests of the Helm chart install these packages into an environment of their own.
CHART_TESTS: Final = SOURCE / "tests" / "engines" / "chart"
DATA_REQUIREMENTS: Final = LOCKS_FOLDER.parent / "requirements-data.txt"
PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")  # The same versions as in pyproject.toml.
MACHINES: Final = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
CHECK_SECONDS: Final = 120.0
NOT_CHECKED: Final = 3
TORCH_PACKAGES: Final = frozenset({"torch", "torchvision"})
# The build of our own wheel needs these packages. pyproject.toml also lists them.
BUILD_PACKAGES: Final = frozenset({"setuptools"})
CUDA_PREFIXES: Final = ("nvidia-", "cuda-", "triton")
EXTRAS: Final = {  # The order is important: a package is written only into the first lock file that needs it.
    "broker": ("broker",),
    "export": ("export",),
    "dev": ("broker", "export", "tensorboard", "dev"),
    "docs": ("broker", "export", "tensorboard", "dev", "docs"),
    "mlflow": ("mlflow",),
    "ray": ("ray",),
}
# Lock files that are not installed before this one, so it also has packages that they have.
WITHOUT: Final = {"ray": {"docs", "mlflow"}}
HEADERS: Final = {
    "torch": "torch and torchvision",
    "cpu": "builds for CPUs alone, of PyTorch's own index",
    "cuda": "what torch's build for CUDA loads",
    "device": "what a device or a coordinator imports besides torch",
    "broker": "the extra `broker`",
    "export": "the extra `export`",
    "dev": "the extras `dev` and `tensorboard`",
    "docs": "the extra `docs`",
    "mlflow": "the extra `mlflow`",
    "ray": "the extra `ray`",
    "build": "what our own wheel is built with",
    "data": "packages that carry pictures",
}
CHART_HEADER: Final = "what renders and checks the Helm chart in `make test-engines`"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.locks", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--folder", type=Path, default=Path(".venv") / "locks", help="the folder in which uv is installed"
    )
    wheels = "with more builds to allow"
    parser.add_argument("--wheels", type=Path, action="append", default=[], metavar="DIR", help=wheels)
    only = "write nothing; is all that is locked to be had for each Python?"
    parser.add_argument("--check", action="store_true", help=only)
    options = parser.parse_args(arguments)
    if options.check:
        return check_with_tool(options.folder)
    try:
        uv = install_tool(RESOLVER, options.folder, "--only-binary=:all:")
        locks = group_by_lock(lambda *more: resolve(uv, *more))
        chart = resolve(uv, str(CHART_TESTS / "requirements.txt"))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"locks: no lock file was written: {reason_of(error)}", file=sys.stderr)
        return 1
    own = [wheel for folder in options.wheels for path in folder.glob("*.whl") if (wheel := read_wheel(path))]
    locks["cpu"] = cpu_builds(locks["torch"], LOCKS_FOLDER / "cpu.txt", own)
    for name, packages in locks.items():
        (LOCKS_FOLDER / f"{name}.txt").write_text(write_lock(packages, HEADERS[name]))
        print(f"{name}.txt: {len(packages)} packages")
    (CHART_TESTS / "lock.txt").write_text(write_lock(chart, CHART_HEADER))
    print(f"{CHART_TESTS / 'lock.txt'}: {len(chart)} packages")
    return 0


def check_with_tool(folder: Path) -> int:
    """Check the lock files; return 3 if no index can be reached.

    Without an index, the check must not report that the locked packages can be installed.
    """
    try:
        uv = install_tool(RESOLVER, folder, "--only-binary=:all:")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(
            f"locks: not checked: {reason_of(error)}; run the command again on a machine with a network",
            file=sys.stderr,
        )
        return NOT_CHECKED
    return check(uv, [path for path in sorted(LOCKS_FOLDER.glob("*.txt")) if path.stem != "cpu"])


def check(uv: Path, locks: Sequence[Path]) -> int:
    """Print for each Python and machine whether all locked packages can be installed.

    Return 0 if all packages can be installed everywhere, and 1 otherwise.

    This downloads the descriptions of the packages, and not the packages.
    """
    code = 0
    for python, machine in itertools.product(PYTHONS, MACHINES):
        if problem := problem_on(python, machine, uv, locks):
            print(f"locks: Python {python} on {machine}: {problem}", file=sys.stderr)
            code = 1
        else:
            print(f"Python {python} on {machine}: all locked packages can be installed")
    return code


def problem_on(python: str, machine: str, uv: Path, locks: Sequence[Path]) -> str:
    """Return the reason why the packages cannot be installed for this Python and machine; "" if there is none."""
    how = ("--no-deps", "--require-hashes", "--only-binary=:all:", "--target", str(uv.parent / "nowhere"))
    command = [str(uv), "pip", "install", "--dry-run", "--quiet", *how]
    command += ["--python-version", python, "--python-platform", machine]
    command += [word for lock in locks for word in ("-r", str(lock))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the index has not answered in {CHECK_SECONDS:g} s"
    # uv breaks its messages into lines for a terminal, so the lines are joined.
    why = " ".join(done.stderr.split()) or "uv failed and said nothing"
    return why.partition("cause: ")[2] or why if done.returncode else ""


def reason_of(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{RESOLVER} was not installed in {error.timeout:g} s"
    return str(error.stderr or error.stdout or "no output").strip().splitlines()[-1]


def resolve(uv: Path, *more: str) -> list[LockedPackage]:
    """Return all packages that the project needs. `more` names further extras or files of requirements."""
    output = ("--generate-hashes", "--no-header", "--no-annotate", "-q")
    command = [str(uv), "pip", "compile", "--universal", "--python-version", PYTHONS[0], *output]
    command += ["-c", str(CONSTRAINTS), *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=SOURCE)
    return read_lock(done.stdout)


def group_by_lock(resolve: Callable[..., list[LockedPackage]]) -> dict[str, list[LockedPackage]]:
    """Put each package into the first lock file that needs it."""
    project = str(SOURCE / "pyproject.toml")
    base = resolve(project)
    locks = {
        "torch": [p for p in base if p.name in TORCH_PACKAGES],
        "cuda": [p for p in base if p.name.startswith(CUDA_PREFIXES)],
    }
    locks["device"] = not_locked_in(base, locks.values())
    for lock, extras in EXTRAS.items():
        named = [word for extra in extras for word in ("--extra", extra)]
        known = [found for name, found in locks.items() if name not in WITHOUT.get(lock, ())]
        locks[lock] = not_locked_in(resolve(project, *named), known)
    locks["build"] = [p for p in base if p.name in BUILD_PACKAGES]
    locks["data"] = resolve("--no-deps", str(DATA_REQUIREMENTS))
    return locks


def not_locked_in(packages: list[LockedPackage], known: Iterable[list[LockedPackage]]) -> list[LockedPackage]:
    """Return the packages that are in none of the lock files `known`, so this lock file must have them.

    A package is in a lock file only if the file has it for the same Python versions, or for all Python versions.
    """
    locked = {(package.name, package.marker) for lock in known for package in lock}
    return [
        package for package in packages if not {(package.name, package.marker), (package.name, "")} & locked
    ]


def cpu_builds(packages: list[LockedPackage], lock: Path, wheels: list[Wheel]) -> list[LockedPackage]:
    """Return builds of the locked versions for the CPU; no public index has these builds.

    They are the given wheels, and the wheels that the lock file allowed before.
    """
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
