"""The choice of a cohort: when a round may begin, and which of the present devices take part."""

from __future__ import annotations

import random
from dataclasses import dataclass

from protofleet.coordinator.round.policy import Policy


@dataclass
class CohortSelection:
    policy: Policy
    seed: int
    settled: float | None = None  # Time at which the round begins, even if no more devices join.

    @property
    def seats(self) -> int:
        """Return the number of devices in a cohort; 0 if all present devices take part."""
        return self.policy.cohort and self.policy.cohort + self.policy.spares

    def is_complete(self, here: int, steady: int, least: int, first: bool, now: float) -> bool:
        """Return whether a round may begin with the devices that are present.

        `here` is the number of present devices, and `steady` is the number of present devices that are
        steady. A round needs `least` devices. Only the first attempt at the first round waits for policy.gather
        devices.
        """
        p, gather = self.policy, self.policy.gather if first else 0
        ready = here >= gather and steady >= least
        latest = now + (p.settle_seconds if ready else p.patience_seconds)
        self.settled = latest if self.settled is None else min(self.settled, latest)
        return now >= self.settled or (ready and here == (gather or self.seats))

    def draw(
        self, steady: set[str], others: set[str], number: int, attempt: int, everybody: bool = False,
        taken: int = 0,
    ) -> tuple[str, ...]:  # fmt: skip
        """Draw a cohort at random with a fixed seed.

        The steady devices get seats first, and the devices of `others` get the seats that are left. `taken` is the
        number of seats that other devices already have.
        """
        dice = random.Random(f"{self.seed}/{number}/{attempt}")
        size = len(steady) + len(others)
        if self.seats and not everybody:
            size = max(0, self.seats - taken)
        drawn = _drawn(dice, steady, size)
        return tuple(sorted(drawn + _drawn(dice, others, size - len(drawn))))


def _drawn(dice: random.Random, devices: set[str], most: int) -> list[str]:
    return dice.sample(sorted(devices), max(0, min(most, len(devices))))
