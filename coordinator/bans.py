"""Who is not listened to: names that flood, until an operator lifts it; those that an error of ours met, for a while.

A ban is a file of the run's folder, <folder>/coordinator/banned/<name>: it outlives a restart, and whoever may write
there lifts it by removing it. A pause is this process's alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from protocol.disk import Disk
from protocol.topics import valid_name

BANNED: Final = "banned"
LOOK_SECONDS: Final = 1.0  # between looks at the folder, while somebody is banned
SAY_SECONDS: Final = 3600.0  # between lines of the log about those that go on
PAUSE_SECONDS: Final = 60.0  # the first; each doubles, up to the longest
LONGEST_PAUSE_SECONDS: Final = 86_400.0

log = logging.getLogger("protofleet.coordinator")


class Bans:
    """All but `drops` is called by the thread that owns the service."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self._folder, self._disk = folder, disk or Disk()
        self._until: dict[str, float] = {}
        self._pauses: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._dropped = self._uncounted = 0
        self._look_at, self._said_at = 0.0, float("-inf")
        self.banned = banned_in(folder)
        self.unheard = self.banned  # replaced whole: another thread reads it

    @property
    def wake_at(self) -> float:
        return self._look_at if self.unheard else float("inf")

    def drops(self, name: str) -> bool:
        """Whether what this name says is dropped, and that it was. Any thread may call."""
        if name not in self.unheard:
            return False
        with self._lock:
            self._dropped += 1
            self._uncounted += 1
        return True

    def ban(self, name: str, now: float) -> bool:
        """For flooding, until it is lifted. False where it is not listened to already."""
        if name in self.unheard:
            return False
        try:
            self._disk.make(self._folder / BANNED)
            (self._folder / BANNED / valid_name(name)).write_text("it floods\n")
        except OSError as error:  # a disk without room for a name
            log.warning("the ban of %s is not written (%s): it holds for an hour", name, error.strerror)
            return self.pause(name, now, SAY_SECONDS) > 0
        self.banned |= {name}
        self._changed(now)
        self._said_at = now
        words = f"protofleet unban {name} --folder {self._folder.parent}"
        log.warning("%s floods: nothing of it is read until `%s`", name, words)
        return True

    def pause(self, name: str, now: float, seconds: float = 0.0) -> float:
        """Not to be listened to for so long; by default twice as long as the last time."""
        self._pauses[name] += 1
        longer = min(PAUSE_SECONDS * 2.0 ** (self._pauses[name] - 1), LONGEST_PAUSE_SECONDS)
        self._until[name] = now + (seconds or longer)
        self._changed(now)
        return seconds or longer

    def look(self, now: float) -> int:
        """Lift what has been lifted or is over. How many frames were dropped since the last look comes back."""
        before = self.unheard
        self.banned = banned_in(self._folder)
        self._until = {name: until for name, until in self._until.items() if now < until}
        self._changed(now)
        for name in sorted(before - self.unheard):
            log.warning("%s is listened to again", name or "who has no key")
        self._say(now)
        with self._lock:
            uncounted, self._uncounted = self._uncounted, 0
        return uncounted

    def _say(self, now: float) -> None:
        if self.banned and now >= self._said_at + SAY_SECONDS:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            self._said_at = now
            names = ", ".join(sorted(self.banned)[:20])
            log.warning("%d are banned (%s); %d frames were dropped", len(self.banned), names, dropped)

    def _changed(self, now: float) -> None:
        self.unheard = self.banned | frozenset(self._until)
        self._look_at = now + LOOK_SECONDS


def lift(folder: Path, name: str) -> None:
    (folder / BANNED / valid_name(name)).unlink(missing_ok=True)


def banned_in(folder: Path) -> frozenset[str]:
    """The names that are banned in a coordinator's folder."""
    found = []
    with contextlib.suppress(OSError):
        for path in (folder / BANNED).iterdir():
            with contextlib.suppress(ValueError):
                found.append(valid_name(path.name))
    return frozenset(found)
