"""Install packages that contain data, each by its hash and without dependencies, into a temporary folder."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from protofleet.runtime import children
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.locks.lockfile import LockedPackage, write_lock


def install(name: str, locked: list[LockedPackage], target: Path) -> None:
    """Install a package by its known hashes. The installer takes earlier downloads from its own cache."""
    with tempfile.TemporaryDirectory() as made:
        lock = Path(made) / "data.txt"
        lock.write_text(write_lock(locked, name))
        options = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-q", "--target", str(target)]
        done = subprocess.run([*installer(), *options, "-r", str(lock)], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise RunError(
            f"{name} cannot be fetched: {said[-1][:300]}; run the same command again, or install it where this "
            f"Python finds it: pip install --no-deps {name}=={locked[-1].version}"
        )


def installer() -> list[str]:
    """Return the command of this Python's pip.

    If there is no pip, as with uvx and in some images, return the command of uv.
    """
    if importlib.util.find_spec("pip") is not None:
        return [*children.command("pip"), "install", "--disable-pip-version-check"]
    for words in (shutil.which("uv"), Path.home() / ".local" / "bin" / "uv"):
        if words and Path(words).is_file():
            return [str(words), "pip", "install", "--python", sys.executable]
    raise RunError(
        "these data are fetched with pip or uv, and neither is there: python -m ensurepip gives this Python its pip"
    )
