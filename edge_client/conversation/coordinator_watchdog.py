"""A warning when a connected device has received no new message of its coordinator for some minutes.

The coordinator may be down, or the broker may suppress or repeat its messages; repeated messages do not count.
A coordinator that runs publishes its state every minute.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

log = logging.getLogger("protofleet.device")

SILENT_SECONDS: Final = 180.0


@dataclass
class CoordinatorWatchdog:
    since: float = float("inf")  # time of the last new message; infinity while no message is expected
    expired: bool = False

    @property
    def alarm_at(self) -> float:
        return float("inf") if self.expired else self.since + SILENT_SECONDS

    def start(self, now: float) -> None:
        self.since, self.expired = now, False

    def stop(self) -> None:
        self.since, self.expired = float("inf"), False

    def heard(self, at: float) -> None:
        """Record that a new message of the coordinator arrived at the time `at`."""
        if self.since < at:
            if self.expired:
                log.warning("the coordinator is heard again, after %.0f s", at - self.since)
            self.start(at)

    def check(self, now: float) -> None:
        if now >= self.alarm_at:
            self.expired = True
            log.warning(
                "connected, but nothing new from the coordinator for %.0f s: it is away, or the broker "
                "withholds its messages; check whether it runs, and its log",
                now - self.since,
            )
