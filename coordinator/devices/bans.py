"""Bans and pauses of device names: messages under a banned or paused name are dropped.

A ban follows flooding, and a pause follows an error of this program. Both end by themselves, because a message
on a device's topic may come from a hostile broker and not from the device. Each ban or pause of a name is twice
as long as the previous one, up to a day. After a day without a ban or pause of that name, the next ban or pause
has the first length again.

A ban is a file, <folder>/coordinator/banned/<name>. The file holds the time when the ban began, and the
number of bans so far. So a ban survives a restart, and a person ends a ban by removing the file. A pause is
stored only in the memory of this process.
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
REFRESH_SECONDS: Final = 1.0  # Seconds between two checks of the folder while it holds a ban.
LOG_SECONDS: Final = 3600.0  # Seconds between two log lines about bans that are still active.
# Length of the first ban in seconds; each further ban is twice as long, up to LONGEST_SECONDS.
BAN_SECONDS: Final = 3600.0
PAUSE_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 86_400.0
# Seconds from the end of a ban until the bans of the name are counted from 1 again.
QUIET_SECONDS: Final = 86_400.0
# Largest number of doublings of a length. More doublings could overflow, and LONGEST_SECONDS is reached much earlier.
MOST_DOUBLED: Final = 20

log = logging.getLogger("protofleet.coordinator")


@dataclass(frozen=True, slots=True)
class Suspension:
    """A ban or pause of a name.

    `times` is the number of bans or pauses of the name so far. `first` is the length in seconds of its first
    ban or pause.
    """

    since: float
    first: float
    times: int = 1

    @property
    def until(self) -> float:
        return self.since + min(self.first * 2.0 ** min(self.times - 1, MOST_DOUBLED), LONGEST_SECONDS)

    def is_active(self, at: float) -> bool:
        """Return whether the ban or pause is active at this time.

        If `at` is before the beginning of the ban, the clock was set back. Then the ban is not active, because the
        ban could otherwise last for years.
        """
        return self.since <= at < self.until

    def counts(self, at: float) -> bool:
        return self.since <= at < self.until + QUIET_SECONDS

    @staticmethod
    def after(last: Suspension | None, at: float, first: float) -> Suspension:
        return Suspension(at, first, last.times + 1 if last and last.counts(at) else 1)


class Bans:
    """The bans and pauses of a coordinator.

    `clock` returns a time that a restart does not reset. Only the method `drops` may be called outside the
    thread of the service.
    """

    def __init__(
        self, folder: Path, disk: Disk | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder, self._disk, self._clock = folder, disk or Disk(), clock
        self._pauses: dict[str, Suspension] = {}
        self._lock = threading.Lock()
        self._dropped = self._uncounted = 0
        self._refresh_at, self._logged_at = 0.0, float("-inf")
        self._bans = _records(folder)
        # Another thread reads these sets. So a set is never changed, but replaced by a new set.
        self.banned = self.ignored = banned_in(folder, clock())

    @property
    def wake_at(self) -> float:
        return self._refresh_at if self.ignored or self._bans else float("inf")

    def drops(self, name: str) -> bool:
        """Return whether messages of this name are dropped; if they are, count one more dropped message.

        Any thread may call this method.
        """
        if name not in self.ignored:
            return False
        with self._lock:
            self._dropped += 1
            self._uncounted += 1
        return True

    def ban(self, name: str, now: float) -> bool:
        """Ban a name for flooding; return False if the name is already ignored."""
        if name in self.ignored:
            return False
        ban = Suspension.after(self._bans.get(name), float(int(self._clock())), BAN_SECONDS)
        try:
            self._disk.make(self.folder / BANNED)
            (self.folder / BANNED / valid_name(name)).write_text(f"{ban.since:.0f} {ban.times}\n")
        except OSError as error:  # The disk has no room for the file of the ban.
            seconds = self.pause(name, now, BAN_SECONDS)
            log.warning(
                "%s floods the coordinator: messages under this name are ignored for %.0f s; a restart ends the ban, "
                "because the ban could not be stored (%s)",
                name,
                seconds,
                error.strerror,
            )
            return True
        self._bans[name] = ban
        self._update(now)
        self._logged_at = now
        command = f"protofleet unban {name} --folder {self.folder.parent}"
        log.warning(
            "%s floods the coordinator: messages under this name are ignored until %s, or until you run `%s`",
            name,
            _as_time(ban.until),
            command,
        )
        return True

    def pause(self, name: str, now: float, first: float = PAUSE_SECONDS) -> float:
        """Pause a name and return the remaining seconds of the pause.

        A pause that is active already is not made longer.
        """
        last = self._pauses.get(name)
        if not (last and last.is_active(now)):
            last = self._pauses[name] = Suspension.after(last, now, first)
            self._update(now)
        return last.until - now

    def refresh(self, now: float) -> int:
        """End the bans that are over or whose file was removed.

        Return the number of frames that were dropped since the last call.
        """
        before = self.ignored
        self._delete_old(now)
        self._update(now)
        for name in sorted(before - self.ignored):
            log.warning("messages of %s are no longer ignored", name or "devices that are not enrolled")
        self._log_bans(now)
        with self._lock:
            uncounted, self._uncounted = self._uncounted, 0
        return uncounted

    def _delete_old(self, now: float) -> None:
        """Delete the bans and pauses that are too old to make the next ban or pause longer."""
        found, at = _records(self.folder), self._clock()
        self._bans = {name: ban for name, ban in found.items() if ban.counts(at)}
        for name in found.keys() - self._bans.keys():
            with contextlib.suppress(OSError):
                lift(self.folder, name)
        self._pauses = {name: pause for name, pause in self._pauses.items() if pause.counts(now)}

    def _log_bans(self, now: float) -> None:
        if self.banned and now >= self._logged_at + LOG_SECONDS:
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            self._logged_at = now
            names = ", ".join(sorted(self.banned)[:20])
            log.warning(
                "%d devices are banned (%s); %d of their frames were dropped",
                len(self.banned),
                names,
                dropped,
            )

    def _update(self, now: float) -> None:
        at = self._clock()
        self.banned = frozenset(name for name, ban in self._bans.items() if ban.is_active(at))
        self.ignored = self.banned | {name for name, pause in self._pauses.items() if pause.is_active(now)}
        self._refresh_at = now + REFRESH_SECONDS


def lift(folder: Path, name: str) -> None:
    (folder / BANNED / valid_name(name)).unlink(missing_ok=True)


def describe_ban(ban: Suspension) -> str:
    """Describe the end and the reason of a ban; the reason is always flooding."""
    again = replace(ban, times=ban.times + 1)
    return (
        f"until {_as_time(ban.until)}, as it flooded at {_as_time(ban.since)} (ban {ban.times} of it; the next one "
        f"within a day after the end lasts {(again.until - again.since) / 3600:g} h)"
    )


def bans_in(folder: Path, at: float | None = None) -> dict[str, Suspension]:
    """Return the active bans in a coordinator's folder by name; `at` is a Unix time, by default now."""
    when = time.time() if at is None else at
    return {name: ban for name, ban in sorted(_records(folder).items()) if ban.is_active(when)}


def banned_in(folder: Path, at: float | None = None) -> frozenset[str]:
    return frozenset(bans_in(folder, at))


def _records(folder: Path) -> dict[str, Suspension]:
    """Return all bans in the folder. Bans that are over are included, because they make the next ban longer."""
    found = {}
    with contextlib.suppress(OSError):
        for path in (folder / BANNED).iterdir():
            with contextlib.suppress(OSError, ValueError):
                found[valid_name(path.name)] = _record(path)
    return found


def _record(path: Path) -> Suspension:
    """Read a ban from its file.

    The time at which the ban began is missing if an earlier version wrote the file, or if the disk was full. In
    this case, the time at which the file was written counts as the beginning of the ban.
    """
    written = path.stat().st_mtime
    try:
        since, times = path.read_text().split()
        return Suspension(float(int(since)), BAN_SECONDS, max(1, int(times)))
    except (ValueError, OverflowError):
        return Suspension(written, BAN_SECONDS)


def _as_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
