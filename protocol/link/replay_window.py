"""Remember in bounded memory which sequence numbers of a sender have been seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.reasons import Reason, Rejected

WIDTH: Final = 1024  # numbers; a message may come this far behind the newest one and still be judged


@dataclass
class ReplayWindow:
    boot: int = 0
    newest: int = 0
    # Different numbers above `counted_from`; numbers begin with 1, and 0 is the number of a will.
    received: int = 0
    holder: str = ""  # holder of the name when the messages were sent; empty if it was not noted
    counted_from: int | None = (
        None  # numbers above this one may count as missing; None: those above the next number that comes
    )
    _seen: int = 0  # bit i says that the number `newest - i` has been seen

    @staticmethod
    def up_to(boot: int, newest: int, holder: str = "") -> ReplayWindow:
        """Return a window in which all numbers up to `newest` have been seen.

        A receiver that has restarted uses it, so that messages which an earlier process has received count as
        duplicates.
        """
        return ReplayWindow(boot, newest, 0, holder, None, (1 << WIDTH) - 1)

    @property
    def missing(self) -> int:
        """Return how many numbers were used while both ends were connected and have not come.

        These messages are lost, held back or on their way.
        """
        return 0 if self.counted_from is None else max(0, self.newest - self.counted_from - self.received)

    def count_from_next(self) -> None:
        """Start counting missing numbers anew, because either end has connected again.

        A message that was sent while the other end was not connected is not lost.
        """
        self.counted_from, self.received = None, 0

    def is_new(self, boot: int, sequence: int) -> bool:
        """Return True the first time that a number comes.

        Raise Rejected if the boot is older than the newest boot. A number that is too old to judge counts as
        seen.
        """
        if boot < self.boot:
            raise Rejected(Reason.STALE_BOOT, f"boot {boot}, but {self.boot} has been heard")
        if boot > self.boot:
            self.boot, self.newest, self._seen = boot, sequence, 1
            self.count_from_next()
            self._count(sequence)
            return True
        if sequence > self.newest:
            # A forged large number must not cause an endless shift.
            shift = min(sequence - self.newest, WIDTH)
            self._seen = (self._seen << shift | 1) & ((1 << WIDTH) - 1)
            self.newest = sequence
            self._count(sequence)
            return True
        behind = self.newest - sequence
        if behind >= WIDTH or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        self._count(sequence)
        return True

    def _count(self, sequence: int) -> None:
        if self.counted_from is None and sequence:
            self.counted_from = self.newest
        elif self.counted_from is not None and sequence > self.counted_from:
            self.received += 1
