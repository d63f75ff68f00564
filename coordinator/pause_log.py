"""Log the earliest time of the next round if the policy delays the round."""

from __future__ import annotations

import logging
from typing import Final

from protofleet.coordinator.round.pace import opening_words
from protofleet.runtime.logs import fields

log = logging.getLogger("protofleet.coordinator")

# A pause of fewer seconds is not logged. If the end of a pause changes by fewer seconds, this is not logged either.
SHORT_SECONDS: Final = 60.0


class PauseLog:
    def __init__(self) -> None:
        self._logged = 0.0

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
