"""A folder that pictures come into: which of them are new, and whole.

A picture is tried once it has been the same in two looks, which is soon; but a copy may stall for longer. So
what was read counts only if the file is still as it was then, and what cannot be read is tried again, and told once
nothing has changed for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from protofleet.edge_client.data.images.image_files import image_files_in

SETTLE_SECONDS: Final = 5.0  # without a change, after which what cannot be read is no more being written

Signature: TypeAlias = tuple[int, int]


@dataclass
class Seen:
    signature: Signature  # size and time of the last change of content
    changed: int  # ... and of owner or mode too: what could not be read may be readable now
    since: float
    predicted: bool = False
    told: bool = False


class NewPictures:
    """Those that come into a folder from now on, or change there."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._seen = dict[Path, Seen]()
        self._look()
        for seen in self._seen.values():  # those of before are not new
            seen.predicted = True

    def arrived(self) -> list[Path]:
        """What to try now. What comes of it is to be said, by `is_as_tried` or `is_broken`."""
        before = self._seen
        self._look()
        return [path for path in self.waiting() if self._seen[path] is before.get(path)]

    def waiting(self) -> list[Path]:
        """Neither predicted nor told to be broken."""
        return [path for path, seen in self._seen.items() if not (seen.predicted or seen.told)]

    def is_as_tried(self, path: Path) -> bool:
        """Whether a prediction counts, once: else the file has changed while it was read, and arrives again."""
        seen = self._seen[path]
        seen.predicted = _is_still(path, seen)
        return seen.predicted

    def is_broken(self, path: Path) -> bool:
        """Whether to tell that it cannot be read, once: else it may be being written, and arrives again."""
        seen = self._seen[path]
        seen.told = self._clock() - seen.since >= SETTLE_SECONDS and _is_still(path, seen)
        return seen.told

    def _look(self) -> None:
        now, found = self._clock(), dict[Path, Seen]()
        for path in image_files_in(self._folder):
            if (fresh := _seen(path, now)) is not None:
                before = self._seen.get(path)
                found[path] = before if before and _same(before, fresh) else fresh
        self._seen = found


def _seen(path: Path, now: float) -> Seen | None:
    """None: it has gone in the meantime, or leads nowhere."""
    try:
        status = path.stat()
    except OSError:
        return None
    return Seen((status.st_size, status.st_mtime_ns), status.st_ctime_ns, now)


def _same(before: Seen, now: Seen) -> bool:
    return before.signature == now.signature and (before.predicted or before.changed == now.changed)


def _is_still(path: Path, seen: Seen) -> bool:
    now = _seen(path, seen.since)
    return now is not None and _same(seen, now)
