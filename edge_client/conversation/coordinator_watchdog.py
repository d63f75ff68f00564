"""A device that is connected and hears nothing new: its broker may hold messages back.

Old messages that somebody sends again do not count. A coordinator says every minute that it is here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

log = logging.getLogger("protofleet.device")

SILENT_SECONDS: Final = 180.0


@dataclass
class CoordinatorWatchdog:
    since: float = float("inf")  # the last news; never, while there is nothing to expect
    expired: bool = False

    @property
    def alarm_at(self) -> float:
        return float("inf") if self.expired else self.since + SILENT_SECONDS

    def start(self, now: float) -> None:
        self.since, self.expired = now, False

    def stop(self) -> None:
        self.since, self.expired = float("inf"), False

    def heard(self, news_at: float) -> None:
        """Something new, at `news_at`."""
        if self.since < news_at:
            if self.expired:
                log.warning("the coordinator is heard again, after %.0f s", news_at - self.since)
            self.start(news_at)

    def check(self, now: float) -> None:
        if now >= self.alarm_at:
            self.expired = True
            log.warning(
                "connected, but nothing new from the coordinator for %.0f s: it is away, or the broker holds back "
                "what it says; see whether it runs and what it logs",
                now - self.since,
            )
