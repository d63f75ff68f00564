"""Is this process well? The signs of life of its parts, and the watchdog that ends it when there are none.

Nobody restarts a process that hangs: container engines and service managers look at whether it has ended. So it
ends itself, with the stacks of all threads in its log, and whoever restarts it finds all that counts on the disk.
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

STUCK: Final = 70  # the exit code of a process that its watchdog has ended
LOOP_SECONDS: Final = 60.0  # a loop that has not turned for so long is unhealthy
PROBE_SECONDS: Final = 60.0  # the disk is not written to at each request

Check = Callable[[], str]  # what is wrong, and the way out; "" where nothing is

log = logging.getLogger("protofleet")


class Heartbeats:
    """When each part that is at work last gave a sign of life. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def beat(self, part: str) -> None:
        self._last[part] = self._clock()

    def beat_if_working(self, part: str) -> None:
        """Of a part that is idle this starts nothing."""
        if part in self._last:
            self.beat(part)

    def stop(self, part: str) -> None:
        self._last.pop(part, None)

    def longest_gap(self) -> tuple[float, str]:
        """How long ago the part that is most overdue gave a sign of life, and which it is."""
        now = self._clock()
        return max(((now - last, part) for part, last in list(self._last.items())), default=(0.0, ""))


def end_at_once(seconds: float, part: str) -> None:
    log.critical("%s has shown no sign of life for %.0f s; ending, to be started again", part, seconds)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(STUCK)  # an orderly end would wait for what is stuck


@contextlib.contextmanager
def watchdog(heartbeats: Heartbeats, seconds: float) -> Iterator[None]:
    """While the `with` lasts, each part gives a sign of life that often; 0: it is not watched.

    A process that was stopped as a whole (SIGSTOP, a machine that is paused) hangs in no part of it: when it goes on,
    each has its time again.
    """
    done = threading.Event()

    def watch() -> None:
        looked = going_on = time.monotonic()
        while not done.wait(seconds / 10):
            now = time.monotonic()
            if now - looked > seconds / 2:  # this thread has had no turn either
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
    """Some bytes go into this folder and reach the disk. Asked more often, it gives the last answer."""
    found: list[tuple[float, str]] = []

    def check() -> str:
        if not found or clock() - found[0][0] > PROBE_SECONDS or found[0][1]:
            found[:] = [(clock(), _try_to_write(folder / ".health"))]
        return found[0][1]

    return check


def _try_to_write(path: Path) -> str:
    try:
        with path.open("wb") as file:
            file.write(b"can this disk be written to?\n")
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except OSError as error:
        return f"{path.parent} cannot be written to ({error.strerror}); make room, or correct its owner"
    return ""
