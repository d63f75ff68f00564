"""Name the folder of the queue."""

from __future__ import annotations

from pathlib import Path


def queue_folder(runs: Path) -> Path:
    """Return the folder of the queue. No run can have this name, because a name begins with a letter or a digit."""
    return runs / ".queue"
