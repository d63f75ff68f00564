"""Watch a folder for new pictures that are complete.

A picture is tried when two checks in a row find the same file. But the copy of a file may pause for longer than the
time between two checks. Therefore a prediction is valid only if the file has not changed during the prediction. If a
file cannot be read, it is tried again. If such a file does not change for some time, it is reported as broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from protofleet.edge_client.data.images.image_files import image_files_in

# If an unreadable file has not changed for this number of seconds, it is reported as broken.
SETTLE_SECONDS: Final = 5.0

Signature: TypeAlias = tuple[int, int]


@dataclass
class Seen:
    signature: Signature  # Size and time of the last change of content.
    # Time of the last change, including changes of owner or mode: after such a change, the file may be readable.
    changed: int
    since: float
    predicted: bool = False
    told: bool = False


class NewPictures:
    """The pictures that are added to a folder or changed there after this object was made."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._seen = dict[Path, Seen]()
        self._look()
        for seen in self._seen.values():  # Pictures that are in the folder at the start are not new.
            seen.predicted = True

    def arrived(self) -> list[Path]:
        """Return the pictures to try now.

        The caller must then report the outcome with `is_as_tried` or `is_broken`.
        """
        before = self._seen
        self._look()
        return [path for path in self.waiting() if self._seen[path] is before.get(path)]

    def waiting(self) -> list[Path]:
        """Return the pictures that are neither predicted nor reported as broken."""
        return [path for path, seen in self._seen.items() if not (seen.predicted or seen.told)]

    def is_as_tried(self, path: Path) -> bool:
        """Return whether the prediction is valid; if so, mark the picture as predicted.

        If the file has changed during the prediction, the prediction is not valid, and `arrived` returns the file
        again.
        """
        seen = self._seen[path]
        seen.predicted = _is_still(path, seen)
        return seen.predicted

    def is_broken(self, path: Path) -> bool:
        """Return whether to report that the picture cannot be read; if so, mark the picture as reported.

        If the result is false, another program may still be writing the file, and `arrived` returns it again.
        """
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
    """Return the state of a file, or None if it is gone or is a broken link."""
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
