"""The ledger of releases: what a device has given away so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protofleet.protocol.privacy.accountant import Noise, epsilon_of


@dataclass(frozen=True, slots=True)
class PrivateRelease:
    """One vector that has left a device with noise, or is about to leave it."""

    run: str
    round: int
    phase: str
    attempt: int  # Number of this release among those of the same run, round and phase, counted from 1.
    kind: str  # Kind of the arrays of the update, such as "weights".
    unit: str
    sigma: float  # Deviation of the noise on each number, in steps of the grid; of all devices, if they share it.
    sensitivity: float  # Largest change that one unit makes to the vector, in steps of the grid.
    numbers: int  # Count of numbers in the vector.
    delta: float  # Distance of the noise of one number to its law, which is part of delta.

    @property
    def noise(self) -> Noise:
        """Return what the accountant needs to know about this release."""
        return Noise(self.sigma, self.sensitivity, self.numbers, self.delta)


def release_of(
    noise: Noise, run: str, round: int, phase: str, kind: str, unit: str, ledger: Iterable[PrivateRelease]
) -> PrivateRelease:
    """Return the next release of this phase after those of the ledger."""
    attempt = attempts(ledger, run, round, phase) + 1
    return PrivateRelease(
        run, round, phase, attempt, kind, unit, noise.sigma, noise.sensitivity, noise.numbers, noise.distance
    )


def spent_epsilon(releases: Iterable[PrivateRelease], delta: float) -> float:
    """Return the epsilon of all these releases together."""
    return epsilon_of([one.noise for one in releases], delta)


def attempts(releases: Iterable[PrivateRelease], run: str, round: int, phase: str) -> int:
    """Return how many releases there are for this phase of this round."""
    return sum((one.run, one.round, one.phase) == (run, round, phase) for one in releases)


def joined(*ledgers: Iterable[PrivateRelease]) -> list[PrivateRelease]:
    """Return all releases that are in one of the ledgers, each once, in the order in which they are first listed."""
    return list(dict.fromkeys(one for ledger in ledgers for one in ledger))
