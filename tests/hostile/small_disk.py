"""A real disk of a few MiB for a process.

The test mounts it if it may; otherwise the process gets its own mount namespace.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.seclusion import SmallDisk

OWN = ["unshare", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"'


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[list[str]]:
    """Yield the beginning of a command line whose process finds a small disk in this folder."""
    try:
        disk = SmallDisk(folder, size)
    except subprocess.CalledProcessError:
        yield _in_its_own_namespace(folder, size)
        return
    try:
        yield []
    finally:
        disk.close()


def _in_its_own_namespace(folder: Path, size: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    through = [*OWN, "sh", "-c", MOUNT, str(size), str(folder)]
    tried = subprocess.run([*through, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        words = f"a small disk needs root, or namespaces for users: {tried.stderr.strip()}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(words)
    return through
