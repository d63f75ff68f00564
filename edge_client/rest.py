"""How long a device that could not do its work waits before it asks for work again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

FIRST_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 900.0


@dataclass
class Rest:
    """Ever longer pauses, each drawn: a fleet that fails together must not come back together."""

    name: str  # of the device, so that pauses differ between devices and repeat in a simulation
    until: float = 0.0
    failures: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.name)

    def begin(self, now: float) -> float:
        pause = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.failures, 30)) * self._random.uniform(
            0.5, 1.0
        )
        self.until, self.failures = now + pause, self.failures + 1
        return pause

    def over(self) -> None:
        """Work has been done."""
        self.failures = 0
