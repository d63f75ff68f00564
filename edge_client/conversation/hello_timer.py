"""When a device says hello again: every 15 s, or seldom where its coordinator says by itself whom it waits for.

It may be seldom only once this coordinator has said its plan to this device, so has heard it. From then on it names
the device in its `here` whenever it misses it. A device that has taken its leave has to be heard anew. A task or a
receipt shows less: a coordinator that was started again knows from its disk whom it asks, and is told no answer
before it has said its plan. So who first hears of it by other than its birth, which may be lost, says hello at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.messages import RoundStatus

HELLO_SECONDS: Final = 15.0  # between hellos while nothing is heard
HEARD_SECONDS: Final = 120.0  # without a `here`, after which its coordinator has gone, or the run is over
QUIET_SECONDS: Final = 600.0  # between hellos of a device that nobody waits for


@dataclass
class HelloTimer:
    _epoch: int = 0
    _says_whom_it_misses: bool = False  # the last `here` said which question it is at
    _knows_us: bool = False
    _sent_at: float = 0.0
    _hello_sent: bool = True  # to this coordinator, since it was first heard

    def coordinator_is(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._hello_sent = epoch, False
            self.away()

    def expect_frequent(self) -> None:
        """With a connection, or when the device has been away from its work."""
        self._says_whom_it_misses = False

    def away(self) -> None:
        """The device has said that it leaves its work: its coordinator no longer misses it."""
        self._says_whom_it_misses = self._knows_us = False

    def hello_sent(self, now: float) -> None:
        self._sent_at, self._hello_sent = now, True

    def welcomed(self) -> None:
        self._knows_us = True

    def coordinator_here(self, now: RoundStatus | None) -> None:
        self._says_whom_it_misses = now is not None

    def next_hello(self, now: float) -> float:
        if not self._hello_sent:
            return now
        if not self._knows_us:  # whatever else is said meanwhile: the hello or its welcome may be lost
            return max(now, self._sent_at + HELLO_SECONDS)
        if self._says_whom_it_misses:
            return min(now + HEARD_SECONDS, self._sent_at + QUIET_SECONDS)
        return now + HELLO_SECONDS
