"""The pauses of a device that could not do its work; after a pause, the device asks for work again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.transport.reconnect import backoff_seconds

FIRST_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 900.0


@dataclass
class RetryBackoff:
    """The growing pauses of a device that fails repeatedly."""

    name: str  # name of the device, which is the seed of its random pauses
    until: float = 0.0
    failures: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.name)

    def begin(self, now: float) -> float:
        seconds = backoff_seconds(self.failures, FIRST_SECONDS, LONGEST_SECONDS, self._random)
        self.until, self.failures = now + seconds, self.failures + 1
        return seconds

    def succeeded(self) -> None:
        self.failures = 0

    @property
    def paused(self) -> bool:
        """Return whether the device is paused until `resume` is called."""
        return self.until == float("inf")

    def pause(self) -> None:
        self.until = float("inf")

    def resume(self, now: float) -> None:
        self.until = now
