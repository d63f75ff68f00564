"""Before a round: how long a quorum waits for more, and who of those present is drawn."""

from __future__ import annotations

import random
from dataclasses import dataclass

from protofleet.coordinator.round.policy import Policy


@dataclass
class CohortSelection:
    policy: Policy
    seed: int
    settled: float | None = None  # when who is there is enough

    @property
    def seats(self) -> int:
        """In a cohort; 0 for everybody."""
        return self.policy.cohort and self.policy.cohort + self.policy.spares

    def is_complete(self, here: int, steady: int, first: bool, now: float) -> bool:
        """Whether a round may begin with so many; only the first attempt at the first one waits for more."""
        p, gather = self.policy, self.policy.gather if first else 0
        ready = here >= gather and steady >= p.quorum
        latest = now + (p.settle_seconds if ready else p.patience_seconds)
        self.settled = latest if self.settled is None else min(self.settled, latest)
        return now >= self.settled or (ready and here == (gather or self.seats))

    def draw(
        self, steady: set[str], others: set[str], number: int, attempt: int, everybody: bool = False
    ) -> tuple[str, ...]:
        """A seeded choice; others than steady ones take the seats that are left."""
        dice = random.Random(f"{self.seed}/{number}/{attempt}")
        size = len(steady) + len(others)
        if self.seats and not everybody:
            size = self.seats
        drawn = _drawn(dice, steady, size)
        return tuple(sorted(drawn + _drawn(dice, others, size - len(drawn))))


def _drawn(dice: random.Random, devices: set[str], most: int) -> list[str]:
    return dice.sample(sorted(devices), max(0, min(most, len(devices))))
