"""Who is not listened to: names that flood, and those that an error of ours met. Each time for a while, then again.

What a topic brings may be a hostile broker's doing, not its device's. So nothing here is for good: a while ends by
itself, is twice as long the next time, up to a day, and is forgotten after a quiet day.

A ban is a file of the run's folder, <folder>/coordinator/banned/<name>, with when it began and which one it is: it
outlives a restart, and whoever may write there lifts it by removing it. A pause is this process's alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import valid_name

BANNED: Final = "banned"
REFRESH_SECONDS: Final = 1.0  # between looks at the folder, while it holds a name
SAY_SECONDS: Final = 3600.0  # between lines of the log about those that go on
BAN_SECONDS: Final = 3600.0  # the first; each doubles, up to the longest
PAUSE_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 86_400.0
QUIET_SECONDS: Final = 86_400.0  # after the end, until the next is a first one again
MOST_DOUBLED: Final = 20  # more would be no number at some time; the longest is reached long before

log = logging.getLogger("protofleet.coordinator")


@dataclass(frozen=True, slots=True)
class Suspension:
    """How long a name is not listened to: the so-many-th time, of which the first was so long."""

    since: float
    first: float
    times: int = 1

    @property
    def until(self) -> float:
        return self.since + min(self.first * 2.0 ** min(self.times - 1, MOST_DOUBLED), LONGEST_SECONDS)

    def lasts(self, at: float) -> bool:
        """One that has not begun yet is over: the clock was set back, and it might not end for years."""
        return self.since <= at < self.until

    def remembered(self, at: float) -> bool:
        return self.since <= at < self.until + QUIET_SECONDS

    @staticmethod
    def after(last: Suspension | None, at: float, first: float) -> Suspension:
        return Suspension(at, first, last.times + 1 if last and last.remembered(at) else 1)


class Bans:
    """All but `drops` is called by the thread that owns the service. `clock` is one that a restart does not reset."""

    def __init__(
        self, folder: Path, disk: Disk | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._disk, self._clock = folder, disk or Disk(), clock
        self._pauses: dict[str, Suspension] = {}
        self._lock = threading.Lock()
        self._dropped = self._uncounted = 0
        self._refresh_at, self._said_at = 0.0, float("-inf")
        self._bans = _records(folder)
        self.banned = self.ignored = banned_in(folder, clock())  # replaced whole: another thread reads it

    @property
    def wake_at(self) -> float:
        return self._refresh_at if self.ignored or self._bans else float("inf")

    def drops(self, name: str) -> bool:
        """Whether what this name says is dropped, and that it was. Any thread may call."""
        if name not in self.ignored:
            return False
        with self._lock:
            self._dropped += 1
            self._uncounted += 1
        return True

    def ban(self, name: str, now: float) -> bool:
        """For flooding. False where it is not listened to already."""
        if name in self.ignored:
            return False
        ban = Suspension.after(self._bans.get(name), float(int(self._clock())), BAN_SECONDS)
        try:
            self._disk.make(self._folder / BANNED)
            (self._folder / BANNED / valid_name(name)).write_text(f"{ban.since:.0f} {ban.times}\n")
        except OSError as error:  # a disk without room for a name
            seconds = self.pause(name, now, BAN_SECONDS)
            log.warning("%s floods; its ban is not written (%s): %.0f s", name, error.strerror, seconds)
            return True
        self._bans[name] = ban
        self._changed(now)
        self._said_at = now
        words = f"protofleet unban {name} --folder {self._folder.parent}"
        log.warning("%s floods: nothing of it is read until %s or `%s`", name, _as_time(ban.until), words)
        return True

    def pause(self, name: str, now: float, first: float = PAUSE_SECONDS) -> float:
        """For how long it is not listened to now. While it is not, nothing makes that longer."""
        last = self._pauses.get(name)
        if not (last and last.lasts(now)):
            last = self._pauses[name] = Suspension.after(last, now, first)
            self._changed(now)
        return last.until - now

    def refresh(self, now: float) -> int:
        """Lift what has been lifted or is over. How many frames were dropped since the last look comes back."""
        before = self.ignored
        self._forget(now)
        self._changed(now)
        for name in sorted(before - self.ignored):
            log.warning("%s is listened to again", name or "who has no key")
        self._say(now)
        with self._lock:
            uncounted, self._uncounted = self._uncounted, 0
        return uncounted

    def _forget(self, now: float) -> None:
        """Who has been quiet for long enough."""
        found, at = _records(self._folder), self._clock()
        self._bans = {name: ban for name, ban in found.items() if ban.remembered(at)}
        for name in found.keys() - self._bans.keys():
            with contextlib.suppress(OSError):
                lift(self._folder, name)
        self._pauses = {name: pause for name, pause in self._pauses.items() if pause.remembered(now)}

    def _say(self, now: float) -> None:
        if self.banned and now >= self._said_at + SAY_SECONDS:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            self._said_at = now
            names = ", ".join(sorted(self.banned)[:20])
            log.warning("%d are banned (%s); %d frames were dropped", len(self.banned), names, dropped)

    def _changed(self, now: float) -> None:
        at = self._clock()
        self.banned = frozenset(name for name, ban in self._bans.items() if ban.lasts(at))
        self.ignored = self.banned | {name for name, pause in self._pauses.items() if pause.lasts(now)}
        self._refresh_at = now + REFRESH_SECONDS


def lift(folder: Path, name: str) -> None:
    (folder / BANNED / valid_name(name)).unlink(missing_ok=True)


def words_of(ban: Suspension) -> str:
    """Until when, and why: there is one reason for a ban."""
    again = replace(ban, times=ban.times + 1)
    return (
        f"until {_as_time(ban.until)}, as it flooded at {_as_time(ban.since)} (ban {ban.times} of it; the next one "
        f"within a day after the end lasts {(again.until - again.since) / 3600:g} h)"
    )


def bans_in(folder: Path, at: float | None = None) -> dict[str, Suspension]:
    """Of the names that are banned in a coordinator's folder, now if no other time is given."""
    when = time.time() if at is None else at
    return {name: ban for name, ban in sorted(_records(folder).items()) if ban.lasts(when)}


def banned_in(folder: Path, at: float | None = None) -> frozenset[str]:
    return frozenset(bans_in(folder, at))


def _records(folder: Path) -> dict[str, Suspension]:
    """Also of bans that are over, as the next is longer."""
    found = {}
    with contextlib.suppress(OSError):
        for path in (folder / BANNED).iterdir():
            with contextlib.suppress(OSError, ValueError):
                found[valid_name(path.name)] = _record(path)
    return found


def _record(path: Path) -> Suspension:
    """What says no time, as of an earlier version or a full disk, began when it was written."""
    written = path.stat().st_mtime
    try:
        since, times = path.read_text().split()
        return Suspension(float(int(since)), BAN_SECONDS, max(1, int(times)))
    except (ValueError, OverflowError):
        return Suspension(written, BAN_SECONDS)


def _as_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
