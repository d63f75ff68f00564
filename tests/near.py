"""`python -m tests.near` runs the tests that are near the changed files; `make near` runs `make check` first.

Near a file are the tests in the folder that mirrors its room, the tests that import it, and the tests of the
architecture. Without changes in the working tree, the files of the last commit count as changed.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from tests.rooms import PACKAGES, ROOT, Tree

ALWAYS = ("tests/test_architecture.py",)
PRODUCT = (*PACKAGES, "tools", "benchmarks")
# Tests that read files of other kinds than Python: by the folder, or by the ending of the name.
READERS = {
    "docs": ("tests/test_docs.py", "tests/test_prose.py"),
    "experiments": ("tests/lab/local/test_experiment_files.py",),
    ".sh": ("tests/deploy/fleet",),
    ".toml": ("tests/test_packaging.py",),
    ".yml": ("tests/tools/monitoring",),
}
NO_TESTS = 5  # The exit code of pytest if all tests near the files are slow ones.


class NearTests:
    """The tests near files of one checkout."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def of(self, changed: Iterable[str]) -> list[str]:
        """Return the test files and folders to run, without files in a folder that is also returned."""
        found = {*ALWAYS, *(test for name in changed for test in self._near(PurePosixPath(name)))}
        there = sorted(name for name in found if (self.root / name).exists())
        folders = {name for name in there if (self.root / name).is_dir()}
        return [name for name in there if not folders & {str(above) for above in PurePosixPath(name).parents}]

    def _near(self, file: PurePosixPath) -> Iterator[str]:
        top = file.parts[0]
        if file.suffix == ".py":
            yield from self.importers.get(module(file), ())
            if top == "tests" and file.name.startswith("test_"):
                yield str(file)
            elif top in PRODUCT:
                yield from self.mirrored(file.parent)
        yield from READERS.get(top, ())
        yield from READERS.get(file.suffix, ())

    def mirrored(self, room: PurePosixPath) -> list[str]:
        """Return the test files of the folder that mirrors a room, without those of the rooms below it."""
        return sorted(
            path.relative_to(self.root).as_posix() for path in mirror(self.root, room).glob("test_*.py")
        )

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Return the test files that import each module."""
        found: dict[str, set[str]] = {}
        for path in (self.root / "tests").rglob("test_*.py"):
            for name in imported(ast.parse(path.read_text())):
                found.setdefault(name, set()).add(path.relative_to(self.root).as_posix())
        return found


def mirror(root: Path, room: PurePosixPath) -> Path:
    """Return the folder of tests for a room: tests/cli for protofleet/cli, tests/lab/report for lab/report."""
    parts = room.parts[1:] if room.parts[0] == "protofleet" else room.parts
    return root.joinpath("tests", *parts)


def module(file: PurePosixPath) -> str:
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    return name if file.parts[0] in ("protofleet", "tests", "tools", "benchmarks") else f"protofleet.{name}"


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def without_mirror(root: Path = ROOT, least: int = 300) -> list[str]:
    """Return the rooms with more lines than that which have no mirrored folder with tests."""
    tree = Tree(root)
    places = {room: tree.files[room].parent.relative_to(root) for room in tree.rooms}
    return [
        str(place)
        for room, place in places.items()
        if tree.lines(room) > least and not any(mirror(root, PurePosixPath(place)).glob("test_*.py"))
    ]


def changed_files(since: str = "") -> list[str]:
    """Return the files that differ from a commit; by default those of the working tree, else of the last commit."""
    new = git("ls-files", "--others", "--exclude-standard")
    if since:
        return sorted({*git("diff", "--name-only", since), *new})
    return sorted({*git("diff", "--name-only", "HEAD"), *new}) or git("diff", "--name-only", "HEAD~1", "HEAD")


def git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.near", description=__doc__)
    parser.add_argument("--since", default="", metavar="COMMIT", help="compare with this commit")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    options, words = parser.parse_known_args(arguments)
    near = NearTests().of(changed_files(options.since))
    if options.list:
        print("\n".join(near))
        return 0
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "not slow and not containers and not engines",
        *words,
        *near,
    ]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if code == NO_TESTS else code


if __name__ == "__main__":
    sys.exit(main())
