"""Commands in their order: first what they write, then one commit for a whole turn, then what they say.

Nothing that anybody outside can see depends on what is not committed: a death before the commit is a death before the
turn's first word, and whoever has no receipt says its answer again. Where the disk is full or locked all of them wait
until it is not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from protofleet.coordinator.round.events import Accept, Close, Command, Save
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.storage.disk import is_full, is_locked, shortage
from protofleet.protocol.storage.full_disk import FullDiskLog
from protofleet.runtime.faults import OURS, OurFault

log = logging.getLogger("protofleet.coordinator")

RETRY_SECONDS: Final = 5.0  # between looks at a full disk, or at a lock


class Performer(Protocol):
    """Carries commands out, each half again from its beginning where it raises because the disk is full."""

    def write(self, command: Command) -> None:
        """What it changes here, and on the disk."""

    def say(self, command: Command) -> None:
        """What leaves: messages, and work for the worker. All that was written before is committed."""

    def commit(self) -> None:
        """All that was written."""


class CommandQueue:
    def __init__(self, spool: Spool, performer: Performer) -> None:
        self._spool, self._performer = spool, performer
        self._waiting: deque[Command] = deque()  # to be written
        self._written: deque[Command] = deque()  # to be said, once they are committed
        # Where the disk was found full or locked: by what is to be written, or by the commit.
        self._cannot_write = self._cannot_commit = False
        self.full_disk = FullDiskLog(log, spool.folder, "nothing new is begun", "the run goes on")
        self._is_locked = False  # locked by another program, which is in the log
        self.is_held = False  # nothing is said
        self.wake_at = float("inf")

    def __len__(self) -> int:
        """Commands that the disk has not taken."""
        return len(self._waiting) + (len(self._written) if self._cannot_commit else 0)

    def add(self, commands: Sequence[Command], now: float) -> None:
        self._waiting.extend(commands)
        if not self._cannot_write:
            self._write(now)

    def hold(self) -> None:
        """Say nothing until `release`: what is written is committed all the same."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def retry(self, command: Command, why: BaseException, now: float) -> None:
        """It was carried out, and its result found the disk full."""
        self._waiting.appendleft(command)
        self._cannot_write = True
        self._wait(why, now)

    def no_room(self, why: str) -> None:
        """For an answer that is offered. What waits for a lock is no sign of a full disk."""
        if not self._is_locked:
            self.full_disk.found_full(why)

    def wake(self, now: float) -> None:
        if now >= self.wake_at:
            self._cannot_write = self._cannot_commit = False
            self.wake_at = float("inf")
            self._say(now)
            if not self._cannot_commit:
                self._write(now)

    def end_turn(self, now: float) -> None:
        """Commit what the turn has written, and say it."""
        if not self._cannot_commit:
            self._say(now)

    def _write(self, now: float) -> None:
        while self._waiting:
            if not self._tried(self._performer.write, self._waiting[0], now):
                self._cannot_write = True
                return
            self._written.append(self._waiting.popleft())

    def _say(self, now: float) -> None:
        if not self._written:
            return
        if not self._tried(lambda _: self._performer.commit(), self._written[0], now):
            self._cannot_commit = self._cannot_write = True
            return
        if any(isinstance(command, (Save, Accept, Close)) for command in self._written):
            self._something_was_written()
        while self._written and not self.is_held:
            if not self._tried(self._performer.say, self._written[0], now):
                self._cannot_commit = self._cannot_write = True
                return
            self._written.popleft()

    def _tried(self, half: Callable[[Command], None], command: Command, now: float) -> bool:
        try:
            half(command)
        except Exception as error:
            if is_full(error) or is_locked(error):
                self._wait(error, now)
                return False
            if isinstance(error, (RunMismatchError, *OURS)):
                raise
            raise OurFault(f"{command} could not be carried out") from error
        return True

    def _something_was_written(self) -> None:
        self.full_disk.found_room()
        if self._is_locked:
            log.warning("%s can be written again; the run goes on", self._spool.folder / "spool.sqlite")
        self._is_locked = False

    def _wait(self, why: BaseException, now: float) -> None:
        if is_locked(why):
            self._warn_of_lock(str(why))
        else:
            short = shortage(self._spool.folder)
            self.full_disk.found_full(f"{why}, {short}" if short not in str(why) else str(why))
        self.wake_at = now + RETRY_SECONDS

    def _warn_of_lock(self, why: str) -> None:
        if not self._is_locked:
            log.error(
                "%s is held by another program (%s): the run waits and tries again every %.0f s; end that program, "
                "as a shell or a backup, or let it finish",
                self._spool.folder / "spool.sqlite", why, RETRY_SECONDS,
            )  # fmt: skip
        self._is_locked = True
