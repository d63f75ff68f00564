"""A warning when a connected device has received no new message of its coordinator for some minutes.

A running coordinator publishes its state every minute. If no new message arrives, the coordinator is down, or the
broker does not forward its messages. A message that the broker repeats is not a new message.
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
                log.warning(
                    "the coordinator has sent a new message, after %.0f s without one", at - self.since
                )
            self.start(at)

    def check(self, now: float) -> None:
        if now >= self.alarm_at:
            self.expired = True
            log.warning(
                "the device is connected, but has received no new message of the coordinator for %.0f s: the "
                "coordinator is down, or the broker does not forward its messages; check whether the coordinator "
                "runs, and read its log",
                now - self.since,
            )
