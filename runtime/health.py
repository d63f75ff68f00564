"""Watch the health of this process: record that its parts still run, and end the process if it hangs.

Container engines and service managers restart a process only when it has ended, and not when it hangs. So a
process that hangs ends itself, and writes the stacks of all threads to its log. No important data is lost,
because such data is always on the disk.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

STUCK: Final = 70  # Exit code of a process that its watchdog has ended.
LOOP_SECONDS: Final = 60.0  # A loop that has made no turn for this many seconds is unhealthy.
# Number of seconds for which checks return the result of a successful test write, without another test write.
PROBE_SECONDS: Final = 60.0
TEST_FILE: Final = ".health"  # The file that a test writes.

Check = Callable[[], str]  # A function that returns a problem with advice, or "".

log = logging.getLogger("protofleet")


class Heartbeats:
    """The time of the last sign of life of each working part; any thread may use this object."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def beat(self, part: str) -> None:
        self._last[part] = self._clock()

    def beat_if_working(self, part: str) -> None:
        """Record a sign of life of a part if the part works at present."""
        if part in self._last:
            self.beat(part)

    def stop(self, part: str) -> None:
        self._last.pop(part, None)

    def longest_gap(self) -> tuple[float, str]:
        """Return the longest time in seconds for which a part has shown no sign of life, and the part's name."""
        now = self._clock()
        return max(((now - last, part) for part, last in list(self._last.items())), default=(0.0, ""))


def end_at_once(seconds: float, part: str) -> None:
    log.critical(
        "%s has shown no sign of life for %.0f s; this process ends, so that its supervisor starts it again",
        part,
        seconds,
    )
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(STUCK)  # A normal exit would wait for the part that hangs.


@contextlib.contextmanager
def watchdog(heartbeats: Heartbeats, seconds: float) -> Iterator[None]:
    """End the process if a part sends no heartbeat for `seconds` in the `with` block; 0 turns the watchdog off.

    A process that was stopped as a whole (by SIGSTOP, or because the machine was paused) does not hang. When
    it continues, each part has its full time again.
    """
    done = threading.Event()

    def watch() -> None:
        looked = going_on = time.monotonic()
        while not done.wait(seconds / 10):
            now = time.monotonic()
            # If this thread runs too late, the whole process was stopped.
            if now - looked > seconds / 2:
                going_on = now
            looked = now
            gap, part = heartbeats.longest_gap()
            if gap > seconds and now - going_on > seconds:
                end_at_once(gap, part)

    if seconds:
        threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def loop_is_running(heartbeats: Heartbeats) -> Check:
    def check() -> str:
        gap, part = heartbeats.longest_gap()
        return f"{part} has shown no sign of life for {gap:.0f} s" if gap > LOOP_SECONDS else ""

    return check


def disk_is_writable(folder: Path, clock: Callable[[], float] = time.monotonic) -> Check:
    """Return a check that writes some bytes to the disk in this folder.

    Within PROBE_SECONDS after a write, the check returns the last result, unless this result was a problem.
    """
    found: list[tuple[float, str]] = []

    def check() -> str:
        if not found or clock() - found[0][0] > PROBE_SECONDS or found[0][1]:
            found[:] = [(clock(), try_to_write(folder / TEST_FILE))]
        return found[0][1]

    return check


def try_to_write(path: Path, content: bytes = b"can this disk be written to?\n") -> str:
    """Write a file durably and delete it; return the problem with advice, or ""."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # On a full disk, a part of the file may be there.
        return f"{path.parent} cannot be written to ({error.strerror}); make room, or correct its owner"
    return ""
