"""Find the mount on which a path lies, for messages about folders that nodes share."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")


def mount_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the mount point of a path with its file system and options, such as "/home, nfs4 (rw,vers=4.2)"."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return str(path)
    words = str(path)
    for line in lines:
        source, place, kind, options = line.split()[:4]
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), place))
        # A later mount covers the earlier ones.
        if path.is_relative_to(point):
            words = f"{point}, {kind} of {source} ({options})"
    return words
