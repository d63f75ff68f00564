"""The time of the next hello that proves the highest epoch to a coordinator with a lower epoch."""

from __future__ import annotations

import random
from typing import Final

from protofleet.edge_client.conversation.hello_timer import SPREAD_SECONDS

PROOF_SECONDS: Final = 60.0  # least seconds between two such hellos
NEVER: Final = float("inf")


class ProofTimer:
    def __init__(self, device: str) -> None:
        """Create a timer; the name of the device is the seed of its random delays."""
        self.at = NEVER
        self._not_before = 0.0
        self._random = random.Random(f"{device} proves an epoch")

    def lower_epoch_heard(self, now: float) -> None:
        """Set the time, because a coordinator with a lower epoch has announced itself.

        All devices receive the announcement at the same moment, so each of them waits for a random time.
        """
        if self.at == NEVER:
            self.at = max(now + SPREAD_SECONDS * self._random.random() ** 2, self._not_before)

    def sent(self, now: float) -> None:
        self.at, self._not_before = NEVER, now + PROOF_SECONDS

    def disconnected(self) -> None:
        self.at = NEVER
