"""Log the earliest time of the next round if the policy delays the round, and the devices that a sum waits for."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from typing import Final

from protofleet.coordinator.round.pace import opening_words
from protofleet.coordinator.round.sum_cohorts import SumCohorts
from protofleet.protocol.wire.name_list import first_names
from protofleet.runtime.logs import fields

log = logging.getLogger("protofleet.coordinator")

# A pause of fewer seconds is not logged. If the end of a pause changes by fewer seconds, this is not logged either.
SHORT_SECONDS: Final = 60.0
MOST_NAMED: Final = 8  # Largest number of missing devices that one log line names.


class PauseLog:
    def __init__(self) -> None:
        self._logged = 0.0
        self._sum_until: float | None = None

    def waits_for_sum(self, round: int, sums: SumCohorts, here: AbstractSet[str], now: float) -> None:
        """Log the devices for which a round of masked sums waits, if the wait has just begun."""
        until, self._sum_until = self._sum_until, sums.wait_until
        if sums.wait_until is None or sums.wait_until == until:
            return
        missing = sorted(sums.missing(here))
        log.warning(
            "round %d waits up to %.0f s (policy.patience_seconds) for %s: the devices of two sums must be the same "
            "or differ by at least %d (secagg.strict_cohort)",
            round, sums.wait_until - now, first_names(missing, MOST_NAMED), sums.apart,
            extra=fields(event="waiting", missing=missing[:MOST_NAMED]),
        )  # fmt: skip

    def next_round_at(self, round: int, at: float, now: float) -> None:
        """Log the time at which the next round may begin, if this time has changed.

        `at` and `now` are Unix times. `at` is 0 if nothing delays the round.
        """
        if not at:
            self._logged = 0.0
        elif abs(at - self._logged) >= SHORT_SECONDS and at - now >= SHORT_SECONDS:
            self._logged = at
            log.info(
                "round %d begins at %s or later (policy.pause_seconds, policy.hours)",
                round, opening_words(at, now), extra=fields(event="pause", round=round, seconds=round_up(at - now)),
            )  # fmt: skip


def round_up(seconds: float) -> int:
    return int(-(-seconds // 1))
