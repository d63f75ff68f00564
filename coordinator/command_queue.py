"""The queue of commands: each turn writes first, then commits once, then sends messages.

No message is sent before the data on which it depends are committed. If the process dies before the commit,
it has not sent any message of that turn. A device that receives no receipt sends its update again. While the
disk is full, or the index is locked by another program, all commands wait.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from protofleet.coordinator.round.events import Accept, Close, Command, Save
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.storage.disk import is_full, is_locked, shortage
from protofleet.protocol.storage.full_disk import FullDiskLog
from protofleet.runtime.faults import OURS, OurFault

log = logging.getLogger("protofleet.coordinator")
C = TypeVar("C")

RETRY_SECONDS: Final = 5.0  # Seconds between two tries while the disk is full or the index is locked.


class Performer(Protocol):
    """The object that carries out commands.

    Each command has two halves, `write` and `say`. If a half raises an error because the disk is full or the
    index is locked, the queue later calls that half again.
    """

    def write(self, command: Command) -> None:
        """Make the changes of the command, in memory and on the disk."""

    def say(self, command: Command) -> None:
        """Send the messages of the command, and give work to the worker.

        The queue calls this method only after all earlier writes are committed.
        """

    def commit(self) -> None:
        """Commit everything that was written since the last commit."""


class CommandQueue:
    def __init__(self, spool: Spool, performer: Performer) -> None:
        self._spool, self._performer = spool, performer
        self._waiting: deque[Command] = deque()  # Commands that are not written yet.
        # Commands that are written already. Their messages are sent after the next commit.
        self._written: deque[Command] = deque()
        # True after a write or a commit has failed because the disk is full or the index is locked.
        self._cannot_write = self._cannot_commit = False
        self.full_disk = FullDiskLog(log, spool.folder, "nothing new is begun", "the run goes on")
        self._is_locked = False  # True if a warning was logged because another program holds the lock.
        self.is_held = False  # True while commands are written and committed, but no messages may be sent.
        self.wake_at = float("inf")

    def __len__(self) -> int:
        """Return the number of commands that wait for the disk."""
        return len(self._waiting) + (len(self._written) if self._cannot_commit else 0)

    def add(self, commands: Sequence[Command], now: float) -> None:
        self._waiting.extend(commands)
        if not self._cannot_write:
            self._write(now)

    def hold(self) -> None:
        """Send no messages until `release` is called; commands are still written and committed."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def retry(self, command: Command, why: BaseException, now: float) -> None:
        """Put a command back at the head of the queue, because the disk had no room for the result of the command."""
        self._waiting.appendleft(command)
        self._cannot_write = True
        self._wait(why, now)

    def no_room(self, why: str) -> None:
        """Report that the disk is full: it has no room for an offered update.

        Do nothing while the commands wait for a lock. A lock does not mean that the disk is full.
        """
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
        """Commit what the turn has written, then send its messages.

        A turn may write without a command. It commits too, because an open transaction locks the index, and another
        coordinator could not take over the folder.
        """
        if not self._cannot_commit:
            self._say(now)

    def _write(self, now: float) -> None:
        while self._waiting:
            if not self._tried(self._performer.write, self._waiting[0], now):
                self._cannot_write = True
                return
            self._written.append(self._waiting.popleft())

    def _say(self, now: float) -> None:
        if not self._written and not self._spool.has_uncommitted:
            return
        command = self._written[0] if self._written else None
        if not self._tried(lambda _: self._performer.commit(), command, now):
            self._cannot_commit = self._cannot_write = True
            return
        if any(isinstance(command, (Save, Accept, Close)) for command in self._written):
            self._something_was_written()
        while self._written and not self.is_held:
            if not self._tried(self._performer.say, self._written[0], now):
                self._cannot_commit = self._cannot_write = True
                return
            self._written.popleft()

    def _tried(self, half: Callable[[C], None], command: C, now: float) -> bool:
        """Return whether the disk has accepted a half of a command, or a commit without a command."""
        try:
            half(command)
        except Exception as error:
            if is_full(error) or is_locked(error):
                self._wait(error, now)
                return False
            if isinstance(error, (RunMismatchError, *OURS)):
                raise
            raise OurFault(f"{command or 'a commit'} could not be carried out") from error
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
                "%s is held by another program (%s), for example a shell or a backup: the run waits and tries again "
                "every %.0f s. End that program, or wait until that program has finished",
                self._spool.folder / "spool.sqlite", why, RETRY_SECONDS,
            )  # fmt: skip
        self._is_locked = True
