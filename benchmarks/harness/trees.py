"""The code that is measured: this checkout, another folder, or the content of a git ref.

All trees run on one Python with the same packages. Each tree has one folder with links. The
name of a link is an import name, and its target is a folder of the tree. Python searches the folder with links
before the installed packages.

The programs that play devices come from this checkout, if they can be imported with the other tree's code.
Both trees then have the same load. Otherwise the other tree's own programs are used.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from protofleet.protocol.settings.reader import SettingsError, read_toml

ROOT = Path(__file__).parent.parent.parent
LIMIT = 120.0


class TreeError(Exception):
    """The error for a tree that does not exist or whose code does not run."""


@dataclass(frozen=True, slots=True)
class Tree:
    label: str
    commit: str
    folder: Path
    path: tuple[Path, ...]  # Folders that Python searches first.
    python: str = sys.executable

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, self.path)), "OMP_NUM_THREADS": "1"}

    def command(self, module: str, *arguments: str) -> list[str]:
        """Return a command that runs a module. The module cannot import anything from the working directory."""
        safe = ("-P",) if sys.version_info >= (3, 11) else ()
        return [self.python, *safe, "-m", module, *arguments]


def this_tree(scratch: Path) -> Tree:
    return tree_of(ROOT, "this", scratch / "this")


def other_tree(wanted: str, scratch: Path) -> Tree:
    """Return the tree for a folder, or for a git ref of this checkout."""
    if Path(wanted).is_dir():
        return tree_of(Path(wanted).resolve(), wanted, scratch / "other")
    folder = scratch / "checkout"
    commit = unpack(wanted, folder)
    return tree_of(folder, wanted, scratch / "other", commit)


def unpack(ref: str, folder: Path) -> str:
    """Write the content of a git ref into a folder, and return its commit.

    Git writes an archive, so no worktree is left.
    """
    commit = git(ROOT, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if not commit:
        raise TreeError(
            f"{ref} is neither a folder nor a commit of {ROOT}; fetch the commit, or give the path of a folder"
        )
    made = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        for member in archive:
            archive.extract(member, folder, set_attrs=False)
    return commit


def tree_of(folder: Path, label: str, scratch: Path, commit: str = "") -> Tree:
    link_packages(folder, scratch)
    commit = commit or git(folder, "rev-parse", "HEAD")
    ours = Tree(label, commit, folder, (scratch, ROOT))
    if (problem := fault_in(ours)) and folder != ROOT:
        ours, before = Tree(label, commit, folder, (scratch, folder)), problem
        if problem := fault_in(ours):
            problem = f"{problem}; and with this checkout's programs: {before}"
    if problem:
        raise TreeError(f"{label}: {problem}")
    return ours


def link_packages(folder: Path, into: Path) -> None:
    """Link the packages of a tree under the import names in its pyproject.toml."""
    try:
        places: dict[str, str] = read_toml(folder / "pyproject.toml")["tool"]["setuptools"]["package-dir"]
    except (SettingsError, KeyError) as error:
        raise TreeError(f"{folder} is not a checkout of protofleet: {error}") from None
    for name, place in sorted(places.items()):
        target = into.joinpath(*name.split("."))
        if "." in name:
            target.symlink_to(folder / place)
            continue
        target.mkdir(parents=True)
        for file in (folder / place).glob("*.py"):
            (target / file.name).symlink_to(file)


def fault_in(tree: Tree) -> str:
    """Return the reason why the code of a tree cannot be measured; "" if the code can be measured."""
    code = "import sys, importlib, protofleet as p; print(p.__file__); [*map(importlib.import_module, sys.argv[1:])]"
    programs = [f"benchmarks.programs.{p.stem}" for p in tree.path[-1].glob("benchmarks/programs/[a-z]*.py")]
    done = subprocess.run(
        [tree.python, "-P", "-c", code, *programs],
        capture_output=True, text=True, env=tree.environment(), timeout=LIMIT, cwd="/",
    )  # fmt: skip
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if not done.stdout.startswith(str(tree.path[0])):
        return f"`import protofleet` finds {done.stdout.strip()} in place of {tree.folder}"
    return ""


def git(folder: Path, *words: str) -> str:
    """Return the output of git, or "" if git fails."""
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
