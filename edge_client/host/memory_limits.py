"""The memory that a process can still take within the limits of its cgroups.

/proc/meminfo does not help in a container, because it has the memory of the whole machine. A process belongs to a
control group (cgroup), either of cgroup version 2 or of the memory controller of cgroup version 1. The groups above
this group limit the process too. Cached pages of files count as free if they were not used for some time, because the
kernel removes these pages when memory is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final


@dataclass(frozen=True, slots=True)
class CgroupVersion:
    """The names of the files in which one version of cgroups reports memory."""

    folder: str
    limit: str
    used: str
    # Name of the line in memory.stat with the bytes of cached files that the kernel can remove.
    reclaimable: str


V1: Final = CgroupVersion(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
V2: Final = CgroupVersion("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def available_within_limits(root: Path) -> Iterator[int]:
    """Yield the available bytes in each control group that limits the memory of this process.

    `sys` and `proc` are read from the file system at `root`.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory") or "memory" in controllers.split(","):
                yield from _of_group_and_above(root, V1 if controllers else V2, path)


def _of_group_and_above(root: Path, version: CgroupVersion, path: str) -> Iterator[int]:
    """Yield the available bytes in a group and in each group above it.

    A container may not see the groups above its own group. Then the container's group is the highest group.
    """
    top, group = root / version.folder, PurePosixPath("/", path)
    for each in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            yield _available(top / each.relative_to("/"), version)


def _available(folder: Path, version: CgroupVersion) -> int:
    # If there is no limit, the text is "max", and `int` raises ValueError.
    limit = int((folder / version.limit).read_text())
    used = int((folder / version.used).read_text())
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return max(0, limit - used + int(stat.get(version.reclaimable, 0)))
