"""Limit the number of frames that a device may send.

Useful frames cost no tokens. Other frames take tokens from a bucket that fills slowly. The topic of a frame
identifies its device, because the broker allows no other party to write on this topic. All senders without a
key share one bucket, so the memory is limited by the number of enrolled devices.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.wire.reasons import Reason, Rejected

# Useless envelopes per second that a device may send. A device without faults sends one hello in 15 s.
FRAME_RATE: Final = 2.0
FRAME_BURST: Final = 64.0
# Useless blocks per second: blocks that were not requested, or that a bad network repeats.
BLOCK_RATE: Final = 256.0
BLOCK_BURST: Final = 1024.0
EXCESS_RATE: Final = 16.0  # rejected frames per second; a higher rate is a flood
EXCESS_BURST: Final = 512.0
REPEAT_RATE: Final = 64.0  # blocks that may be sent again to one device in each second
REPEAT_BURST: Final = 256.0
UNKNOWN_SENDER: Final = ""  # used in place of a name for all senders without a key


@dataclass
class TokenBucket:
    """A bucket that allows `burst` tokens at once and then `rate` tokens a second.

    The present time is an argument of `take`.
    """

    rate: float
    burst: float
    spent: float = 0.0
    updated_at: float = 0.0

    def take(self, now: float, cost: float = 1.0) -> bool:
        self.spent = max(0.0, self.spent - max(0.0, now - self.updated_at) * self.rate)
        self.updated_at = now
        if self.spent + cost > self.burst:
            return False
        self.spent += cost
        return True

    def give_back(self) -> None:
        self.spent = max(0.0, self.spent - 1.0)


class RateLimiter:
    """The limiter of a coordinator.

    Each device with a key has its own buckets. All other senders share one set of buckets.
    """

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._frames: dict[str, TokenBucket] = {}
        self._blocks: dict[str, TokenBucket] = {}
        self._excess: dict[str, TokenBucket] = {}
        # Called with the device that sends a flood, or with UNKNOWN_SENDER.
        self.on_flood: Callable[[str], None] = lambda device: None
        self._own_name = TokenBucket(FRAME_RATE, FRAME_BURST)

    def counted_as(self, device: str) -> str:
        """Return the name under which the frames of a device are counted.

        All names without a key are counted under one name, so that they cannot fill the memory.
        """
        return device if device in self._known else UNKNOWN_SENDER

    def charge_own_name(self, now: float) -> None:
        """Charge a frame that was sent under the coordinator's own name.

        A hostile broker could send any number of such frames.
        """
        if not self._own_name.take(now):
            raise Rejected(
                Reason.FLOOD,
                f"more than {FRAME_RATE:g} frames per second came under the coordinator's own name",
            )

    def charge_frame(self, device: str, now: float) -> None:
        """Charge a device for an envelope before anything in the envelope is read."""
        self._charge(self._frames, device, now, FRAME_RATE, FRAME_BURST)

    def charge_block(self, device: str, now: float) -> None:
        self._charge(self._blocks, device, now, BLOCK_RATE, BLOCK_BURST)

    def frame_was_useful(self, device: str) -> None:
        self._give_back(self._frames, device)

    def block_was_useful(self, device: str) -> None:
        self._give_back(self._blocks, device)

    def _charge(
        self, buckets: dict[str, TokenBucket], device: str, now: float, rate: float, burst: float
    ) -> None:
        name = self.counted_as(device)
        if not buckets.setdefault(name, TokenBucket(rate, burst)).take(now):
            if not self._excess.setdefault(name, TokenBucket(EXCESS_RATE, EXCESS_BURST)).take(now):
                self.on_flood(name)
            raise Rejected(
                Reason.FLOOD,
                f"more than {rate:g} frames per second came from {name or 'senders without a key'}",
            )

    def _give_back(self, buckets: dict[str, TokenBucket], device: str) -> None:
        if bucket := buckets.get(device):
            bucket.give_back()
