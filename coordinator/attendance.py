"""The log line about devices that are missing before a round can begin.

The line is logged at once, and then every minute while devices are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from typing import Final

from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.name_list import first_names
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
        needed, _ = needed_devices(self._policy, first)
        steady = here - doubtful
        if len(steady) >= needed:
            return
        missing, unsure = sorted(enrolled - here), first_names(sorted(doubtful), MOST_NAMED)
        parts = [here_words(len(steady), self._policy, first)]
        parts += [f"not here: {first_names(missing, MOST_NAMED)}"] if missing else []
        parts += [f"unsteady, or refused in this round: {unsure}"] if unsure else []
        parts += [self._unreachable(first, len(enrolled))] if len(enrolled) < needed else []
        log.info(
            "%s", "; ".join(parts),
            extra=fields(event="waiting", here=len(steady), needed=needed, missing=missing[:MOST_NAMED]),
        )  # fmt: skip

    def say_who_is_left(self, left: AbstractSet[str], now: float) -> None:
        """Log the devices that have not answered yet, if a line is due. The server half keeps all other answers."""
        if now < self.wake_at:
            return
        self.wake_at = now + SAY_SECONDS
        log.info(
            "waiting for devices that have not answered: %s; if none of them comes within policy.patience_seconds = "
            "%g, the training ends", first_names(sorted(left), MOST_NAMED), self._policy.patience_seconds,
            extra=fields(event="waiting", missing=sorted(left)[:MOST_NAMED]),
        )  # fmt: skip

    def _unreachable(self, first: bool, enrolled: int) -> str:
        if not enrolled:
            return "no device is enrolled yet: the run goes on as soon as enough devices are"
        _, key = needed_devices(self._policy, first)
        return f"only {enrolled} {'is' if enrolled == 1 else 'are'} enrolled: lower {key}, or enrol more"


def here_words(here: int, policy: Policy, first: bool) -> str:
    """Describe how many of the needed devices are present; `first` is True in the first attempt at round 1."""
    needed, key = needed_devices(policy, first)
    return f"waiting for devices: {here} of {needed} are here ({key} is {needed})"


def needed_devices(policy: Policy, first: bool) -> tuple[int, str]:
    """Return the number of devices that a round needs, and the setting that says so."""
    gather = policy.gather if first else 0
    return max((policy.quorum, "policy.quorum"), (gather, "policy.gather"))
