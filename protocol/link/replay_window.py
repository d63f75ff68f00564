"""Remember in bounded memory which sequence numbers of a sender have been seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.reasons import Reason, Rejected

# A sequence number that is at least this much below the newest sequence number counts as seen.
WIDTH: Final = 1024


@dataclass
class ReplayWindow:
    boot: int = 0
    newest: int = 0
    # Count of different sequence numbers above `counted_from` that have arrived. Sequence numbers begin with 1.
    # An MQTT will has the number 0.
    received: int = 0
    holder: str = ""  # holder of the sender's name when the messages were sent; empty if it is unknown
    counted_from: int | None = (
        # Only sequence numbers above `counted_from` can count as missing. With None, the count starts at the next
        # number that arrives.
        None
    )
    _seen: int = 0  # bit i is set if the number `newest - i` has been seen

    @staticmethod
    def up_to(boot: int, newest: int, holder: str = "") -> ReplayWindow:
        """Return a window in which all numbers up to `newest` have been seen.

        A restarted receiver uses this window. Messages that its earlier process received then count as
        duplicates.
        """
        return ReplayWindow(boot, newest, 0, holder, None, (1 << WIDTH) - 1)

    @property
    def missing(self) -> int:
        """Return how many messages were sent while both ends were connected, but have not arrived.

        These messages are lost, delayed or on their way.
        """
        return 0 if self.counted_from is None else max(0, self.newest - self.counted_from - self.received)

    def count_from_next(self) -> None:
        """Restart the count of missing numbers, because one of the ends has connected again.

        A message that was sent while the other end was not connected does not count as missing.
        """
        self.counted_from, self.received = None, 0

    def is_new(self, boot: int, sequence: int) -> bool:
        """Return True the first time that a sequence number arrives.

        Raise Rejected if the boot is older than the newest boot. Return False for a number below the window.
        """
        if boot < self.boot:
            raise Rejected(
                Reason.STALE_BOOT, f"boot {boot} is older than boot {self.boot} of the same sender"
            )
        if boot > self.boot:
            self.boot, self.newest, self._seen = boot, sequence, 1
            self.count_from_next()
            self._count(sequence)
            return True
        if sequence > self.newest:
            # Without the limit WIDTH, a very large sequence number would cause an equally long shift.
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
