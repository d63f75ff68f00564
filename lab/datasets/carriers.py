"""Install packages that contain data into a temporary folder, by their hashes and without dependencies."""

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
    """Install a package, and check the hashes of its files. The installer may use its download cache."""
    with tempfile.TemporaryDirectory() as made:
        lock = Path(made) / "data.txt"
        lock.write_text(write_lock(locked, name))
        options = ["--require-hashes", "--only-binary", ":all:", "--no-deps", "-q", "--target", str(target)]
        done = subprocess.run([*installer(), *options, "-r", str(lock)], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise RunError(
            f"{name} cannot be fetched: {said[-1][:300]}; run the same command again, or install the "
            f"package for this Python yourself: pip install --no-deps {name}=={locked[-1].version}"
        )


def installer() -> list[str]:
    """Return the command of this Python's pip.

    If this Python has no pip (under uvx and in some images), return the command of uv.
    """
    if importlib.util.find_spec("pip") is not None:
        return [*children.command("pip"), "install", "--disable-pip-version-check"]
    for words in (shutil.which("uv"), Path.home() / ".local" / "bin" / "uv"):
        if words and Path(words).is_file():
            return [str(words), "pip", "install", "--python", sys.executable]
    raise RunError(
        "these data are fetched with pip or uv, and this machine has neither; install pip with python -m ensurepip"
    )
