"""Commands in their order. Where the disk is full or locked they wait, and all behind them, until it is not."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from protofleet.coordinator.round.events import Accept, Close, Command, Save
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.storage.disk import PAUSED, is_full, is_locked, shortage
from protofleet.runtime.faults import OURS, OurFault

log = logging.getLogger("protofleet.coordinator")

RETRY_SECONDS: Final = 5.0  # between looks at a full disk, or at a lock


class CommandQueue:
    def __init__(self, spool: Spool, perform: Callable[[Command], None]) -> None:
        self._spool, self._perform = spool, perform
        self._waiting: deque[Command] = deque()
        self._blocked = False  # the first of them has found the disk full or locked
        self.full = ""  # why the disk is said to be full; until something has been written again
        self._is_locked = False  # locked by another program, which is in the log
        self.wake_at = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, commands: Sequence[Command], now: float) -> None:
        self._waiting.extend(commands)
        if not self._blocked:
            self._go_on(now)

    def retry(self, command: Command, why: BaseException, now: float) -> None:
        """It was performed, and its result found the disk full."""
        self._waiting.appendleft(command)
        self._wait(why, now)

    def no_room(self, why: str) -> None:
        """For an answer that is offered. What waits for a lock is no sign of a full disk."""
        if not self._is_locked:
            self._warn_of_full_disk(why)

    def _warn_of_full_disk(self, why: str) -> None:
        """In the log once."""
        if not self.full:
            log.error(
                "the disk that holds %s is full (%s): nothing new is begun %s",
                self._spool.folder, why, PAUSED,
            )  # fmt: skip
        self.full = why

    def _warn_of_lock(self, why: str) -> None:
        if not self._is_locked:
            log.error(
                "%s is held by another program (%s): the run waits and tries again every %.0f s; end that program, "
                "as a shell or a backup, or let it finish",
                self._spool.folder / "spool.sqlite", why, RETRY_SECONDS,
            )  # fmt: skip
        self._is_locked = True

    def wake(self, now: float) -> None:
        if now >= self.wake_at:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        self._blocked, self.wake_at = False, float("inf")
        while self._waiting:
            try:
                self._perform(self._waiting[0])
            except Exception as error:
                if is_full(error, self._spool.folder) or is_locked(error):
                    self._wait(error, now)
                    return
                if isinstance(error, (RunMismatchError, *OURS)):
                    raise
                raise OurFault(f"{self._waiting[0]} could not be carried out") from error
            done = self._waiting.popleft()
            if isinstance(done, (Save, Accept, Close)):
                self._something_was_written()

    def _something_was_written(self) -> None:
        folder = self._spool.folder
        if self.full:
            log.warning("there is room again on the disk that holds %s; the run goes on", folder)
        if self._is_locked:
            log.warning("%s can be written again; the run goes on", folder / "spool.sqlite")
        self.full, self._is_locked = "", False

    def _wait(self, why: BaseException, now: float) -> None:
        if is_locked(why):
            self._warn_of_lock(str(why))
        else:
            self._warn_of_full_disk(", ".join(filter(None, (str(why), shortage(self._spool.folder)))))
        self._blocked, self.wake_at = True, now + RETRY_SECONDS
