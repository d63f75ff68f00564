"""Which sequence numbers of a sender have been seen, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.reasons import Reason, Rejected

WIDTH: Final = 1024  # how far behind the newest a message may come and still be judged


@dataclass
class ReplayWindow:
    boot: int = 0
    newest: int = 0
    received: int = 0  # different numbers of this boot; they are counted from 1, and 0 is a will's
    holder: str = ""  # of the name, when they were said; empty: nobody has noted it
    _seen: int = 0  # bit i: newest - i has been seen

    @staticmethod
    def up_to(boot: int, newest: int, holder: str = "") -> ReplayWindow:
        """As if all up to there had been seen: what is told again by a receiver that has restarted."""
        return ReplayWindow(boot, newest, newest, holder, (1 << WIDTH) - 1)

    @property
    def missing(self) -> int:
        """Numbers that have been used and have not come: lost, held back, or on their way."""
        return max(0, self.newest - self.received)

    def is_new(self, boot: int, sequence: int) -> bool:
        """True the first time. A newer boot fences the older one; too old to judge counts as seen."""
        if boot < self.boot:
            raise Rejected(Reason.STALE_BOOT, f"boot {boot}, but {self.boot} has been heard")
        if boot > self.boot:
            self.boot, self.newest, self._seen, self.received = boot, sequence, 1, min(1, sequence)
            return True
        if sequence > self.newest:
            shift = min(sequence - self.newest, WIDTH)  # a forged leap must not shift for ever
            self._seen = (self._seen << shift | 1) & ((1 << WIDTH) - 1)
            self.newest, self.received = sequence, self.received + 1
            return True
        behind = self.newest - sequence
        if behind >= WIDTH or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        self.received += min(1, sequence)
        return True
