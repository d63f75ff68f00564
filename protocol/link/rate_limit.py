"""How much a device may say. What is of use costs nothing; what is not is paid from a bucket that fills slowly.

A device is who the topic says: the broker lets nobody else write there, and a broker that does could as well drop
the device's frames. Whoever has no key shares one bucket with all others who have none, so memory stays bounded by
the devices that were enrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.reasons import Reason, Rejected

FRAME_RATE: Final = 2.0  # envelopes a second that are of no use; an honest device says a hello every 15 s
FRAME_BURST: Final = 64.0
BLOCK_RATE: Final = 256.0  # blocks that were not asked for or are here already: repeats of a bad network
BLOCK_BURST: Final = 1024.0
EXCESS_RATE: Final = 16.0  # frames beyond all that; who says more floods
EXCESS_BURST: Final = 512.0
AGAIN_RATE: Final = 64.0  # blocks sent once more to one device: a window a second, as it may ask for them
AGAIN_BURST: Final = 256.0
STRANGER: Final = ""  # not a name: all without a key


@dataclass
class Bucket:
    """`burst` at once, `rate` a second after that. Time is an argument."""

    rate: float
    burst: float
    spent: float = 0.0
    at: float = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        self.spent = max(0.0, self.spent - max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.spent + cost > self.burst:
            return False
        self.spent += cost
        return True

    def give_back(self, cost: float = 1.0) -> None:
        self.spent = max(0.0, self.spent - cost)


class Admission:
    """Of the coordinator: one pair of buckets for each device with a key, one for everybody else."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._frames: dict[str, Bucket] = {}
        self._blocks: dict[str, Bucket] = {}
        self._excess: dict[str, Bucket] = {}
        self.flooded: Callable[[str], None] = lambda who: None  # told of a device, or STRANGER, that floods
        self._own_name = Bucket(FRAME_RATE, FRAME_BURST)

    def who(self, device: str) -> str:
        """The name under which it is counted: whatever is kept for each is bounded by those with a key."""
        return device if device in self._known else STRANGER

    def own_name(self, now: float) -> None:
        """What comes in the coordinator's own name: a broker that was taken over may say it as often as it likes."""
        if not self._own_name.take(now):
            raise Rejected(Reason.FLOOD, f"more than {FRAME_RATE:g} a second in our own name")

    def frame(self, device: str, now: float) -> None:
        """Before anything of an envelope is looked at."""
        self._charge(self._frames, device, now, FRAME_RATE, FRAME_BURST)

    def block(self, device: str, now: float) -> None:
        self._charge(self._blocks, device, now, BLOCK_RATE, BLOCK_BURST)

    def frame_was_useful(self, device: str) -> None:
        self._give_back(self._frames, device)

    def block_was_useful(self, device: str) -> None:
        self._give_back(self._blocks, device)

    def _charge(self, buckets: dict[str, Bucket], device: str, now: float, rate: float, burst: float) -> None:
        who = self.who(device)
        if not buckets.setdefault(who, Bucket(rate, burst)).take(now):
            if not self._excess.setdefault(who, Bucket(EXCESS_RATE, EXCESS_BURST)).take(now):
                self.flooded(who)
            raise Rejected(Reason.FLOOD, f"more than {rate:g} a second from {who or 'strangers'}")

    def _give_back(self, buckets: dict[str, Bucket], device: str) -> None:
        if bucket := buckets.get(device):
            bucket.give_back()
