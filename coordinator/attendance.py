"""The log line about devices that are missing before a round can begin.

The line is logged at once, and then every minute while devices are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from typing import Final

from protofleet.coordinator.round.policy import Policy
from protofleet.runtime.logs import fields

log = logging.getLogger("protofleet.coordinator")

SAY_SECONDS: Final = 60.0
MOST_NAMED: Final = 8  # Largest number of missing devices that one log line names.
NEVER: Final = float("inf")


class AttendanceLog:
    def __init__(self, policy: Policy) -> None:
        self._policy, self.wake_at = policy, NEVER

    def gathering(self, is_gathering: bool, now: float) -> None:
        """Record whether the coordinator now waits for devices before it begins a round."""
        if not is_gathering:
            self.wake_at = NEVER
        elif self.wake_at == NEVER:
            self.wake_at = now

    def say_if_due(
        self,
        first: bool,
        here: AbstractSet[str],
        doubtful: AbstractSet[str],
        enrolled: AbstractSet[str],
        now: float,
    ) -> None:
        """Log the missing devices if a line is due.

        `first` is True in the first attempt at the first round. In this attempt, the setting policy.gather is the
        number of devices to wait for. `doubtful` holds present devices for which the run does not wait.
        """
        if now < self.wake_at:
            return
        self.wake_at = now + SAY_SECONDS
        needed, key = self._needed(first)
        steady = here - doubtful
        if len(steady) >= needed:
            return
        missing = sorted(enrolled - here)
        parts = [f"waiting for devices: {len(steady)} of {needed} are here ({key} is {needed})"]
        parts += [f"not here: {named(missing)}"] if missing else []
        parts += [f"unsteady, or refused in this round: {named(sorted(doubtful))}"] if doubtful else []
        parts += [self._unreachable(key, len(enrolled))] if len(enrolled) < needed else []
        log.info(
            "%s", "; ".join(parts),
            extra=fields(event="waiting", here=len(steady), needed=needed, missing=missing[:MOST_NAMED]),
        )  # fmt: skip

    @staticmethod
    def _unreachable(key: str, enrolled: int) -> str:
        if not enrolled:
            return "no device is enrolled yet: the run goes on as soon as enough devices are"
        return f"only {enrolled} {'is' if enrolled == 1 else 'are'} enrolled: lower {key}, or enrol more"

    def _needed(self, first: bool) -> tuple[int, str]:
        gather = self._policy.gather if first else 0
        return max((self._policy.quorum, "policy.quorum"), (gather, "policy.gather"))


def named(devices: list[str]) -> str:
    more = len(devices) - MOST_NAMED
    return ", ".join(devices[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
