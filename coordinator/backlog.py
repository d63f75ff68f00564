"""Commands in their order. Where the disk is full they wait, and all behind them, until there is room again."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.events import Accept, Close, Command, Save
from coordinator.index import RunMismatchError
from coordinator.spool import Spool
from protocol.disk import is_full
from protocol.faults import OURS, OurFault

log = logging.getLogger("protofleet.coordinator")

RETRY_SECONDS: Final = 5.0  # between looks at a full disk


class Backlog:
    def __init__(self, spool: Spool, perform: Callable[[Command], None]) -> None:
        self._spool, self._perform = spool, perform
        self._waiting: deque[Command] = deque()
        self._stuck = False  # the first of them has found no room
        self.full = ""  # why the disk is said to be full; until something has been written again
        self.wake_at = float("inf")

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, commands: Sequence[Command], now: float) -> None:
        self._waiting.extend(commands)
        if not self._stuck:
            self._go_on(now)

    def again(self, command: Command, why: BaseException, now: float) -> None:
        """It was performed, and what came of it found no room."""
        self._waiting.appendleft(command)
        self._wait(why, now)

    def no_room(self, why: str) -> None:
        """Said once, however often it is met."""
        if not self.full:
            log.error(
                "the disk that holds %s is full (%s): nothing new is begun until there is room",
                self._spool.folder, why,
            )  # fmt: skip
        self.full = why

    def wake(self, now: float) -> None:
        if now >= self.wake_at:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        self._stuck, self.wake_at = False, float("inf")
        while self._waiting:
            try:
                self._perform(self._waiting[0])
            except Exception as error:
                if is_full(error):
                    self._wait(error, now)
                    return
                if isinstance(error, (RunMismatchError, *OURS)):
                    raise
                raise OurFault(f"{self._waiting[0]} could not be carried out") from error
            done = self._waiting.popleft()
            if self.full and isinstance(done, (Save, Accept, Close)):
                log.warning(
                    "there is room again on the disk that holds %s; the run goes on", self._spool.folder
                )
                self.full = ""

    def _wait(self, why: BaseException, now: float) -> None:
        self.no_room(str(why))
        self._stuck, self.wake_at = True, now + RETRY_SECONDS
