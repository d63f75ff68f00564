"""The memory that is left within the limits of cgroups.

/proc/meminfo has the machine's memory, even in a container. A process is in one group of version 2, or of
version 1's memory controller, and each group above also limits it. Pages of files that have not been used for
some time are given back when memory is needed, so they count as free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final


@dataclass(frozen=True, slots=True)
class CgroupVersion:
    """The names of the files of one version of cgroups."""

    folder: str
    limit: str
    used: str
    reclaimable: str  # name of a line of memory.stat


V1: Final = CgroupVersion(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
V2: Final = CgroupVersion("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def available_within_limits(root: Path) -> Iterator[int]:
    """Yield the available bytes of each group that has a limit.

    `root` is the file system whose `sys` and `proc` are read.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory") or "memory" in controllers.split(","):
                yield from _of_group_and_above(root, V1 if controllers else V2, path)


def _of_group_and_above(root: Path, version: CgroupVersion, path: str) -> Iterator[int]:
    """Yield the available bytes of a group and of each group above it.

    A container that does not see the groups above it finds its own group at the top.
    """
    top, group = root / version.folder, PurePosixPath("/", path)
    for each in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            yield _available(top / each.relative_to("/"), version)


def _available(folder: Path, version: CgroupVersion) -> int:
    limit = int((folder / version.limit).read_text())  # this raises ValueError if it is "max"
    used = int((folder / version.used).read_text())
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return max(0, limit - used + int(stat.get(version.reclaimable, 0)))
