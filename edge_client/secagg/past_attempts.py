"""Remember in which attempts a device has taken part, so that it never takes part in two sums of one round.

The difference of two sums of one round is the vector of the devices that are in one of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from protofleet.protocol.secagg.cohorts import may_follow
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.terms import Terms

MOST_ATTEMPTS: Final = 64  # attempts of one round that a device takes part in


@dataclass(frozen=True, slots=True)
class PastAttempts:
    """The attempts of one run and stage that a device remembers; they outlive the keys of an attempt.

    A round has one sum for each stage. So a method with two summed phases in a round would need a memory for each of
    these phases.
    """

    round: int = 0  # newest round in which the device has begun an attempt
    nonces: tuple[bytes, ...] = ()  # of the attempts in this round
    spent: bool = False  # True if the device has helped to unmask a sum of this round
    survivors: tuple[str, ...] = ()  # the cohort of the newest sum that the device has helped to unmask

    def with_attempt(self, terms: Terms) -> PastAttempts:
        """Return the memory with this attempt, or raise SecaggError if the device must not take part in it."""
        if terms.round < self.round:
            raise SecaggError(
                SecaggFault.OLD_ROUND,
                f"round {terms.round} is asked, but this device has begun round {self.round}",
            )
        if terms.round > self.round:
            return PastAttempts(terms.round, (terms.attempt,), False, self.survivors)
        if self.spent:
            raise SecaggError(
                SecaggFault.SPENT, f"this device has already helped to unmask a sum of round {self.round}"
            )
        if terms.attempt in self.nonces or len(self.nonces) >= MOST_ATTEMPTS:
            raise SecaggError(
                SecaggFault.SEEN_ATTEMPT,
                f"the nonce of the attempt was used before in round {self.round}, or this would be more than "
                f"{MOST_ATTEMPTS} attempts",
            )
        return replace(self, nonces=(*self.nonces, terms.attempt))

    def check_cohort(self, terms: Terms, survivors: Sequence[str]) -> None:
        """Raise SecaggError if the last sum and the sum of these devices would show single devices."""
        if not may_follow(self.survivors, survivors, terms.apart):
            different = len(set(self.survivors) ^ set(survivors))
            raise SecaggError(
                SecaggFault.CLOSE_COHORT,
                f"the survivors differ from those of the last sum by {different} devices; they must be the same or "
                f"differ by at least {terms.apart}",
            )

    def with_sum(self, survivors: Sequence[str]) -> PastAttempts:
        """Return the memory after the device has helped to unmask the sum of these devices."""
        return replace(self, spent=True, survivors=tuple(survivors))
