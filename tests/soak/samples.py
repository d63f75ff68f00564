"""The resources that a process and a folder use at this moment, from /proc and the file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def of_process(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    threads = int(next(line for line in status.splitlines() if line.startswith("Threads:")).split()[1])
    return {
        "memory, MB": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6,
        "handles": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": threads,
    }


def of_folder(folder: Path) -> int:
    """Return the bytes of all files in a folder and below it."""
    return sum(sizes(folder.rglob("*")))


def sizes(paths: Iterable[Path]) -> Iterator[int]:
    """Yield the sizes of the paths that are files; some vanish during the count."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                yield path.stat().st_size
