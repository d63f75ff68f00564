"""A device that is connected and hears nothing new: its broker may be holding words back.

Old words, said again by whoever carries them, do not count. A coordinator says every minute that it is here.
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
    told: bool = False

    @property
    def alarm_at(self) -> float:
        return float("inf") if self.told else self.since + SILENT_SECONDS

    def begins(self, now: float) -> None:
        self.since, self.told = now, False

    def ends(self) -> None:
        self.since, self.told = float("inf"), False

    def broken(self, news_at: float) -> None:
        """By something new of `news_at`."""
        if self.since < news_at:
            if self.told:
                log.warning("the coordinator is heard again, after %.0f s", news_at - self.since)
            self.begins(news_at)

    def look(self, now: float) -> None:
        if now >= self.alarm_at:
            self.told = True
            log.warning(
                "connected, but nothing new from the coordinator for %.0f s: it is away, or the broker holds back "
                "what it says; see whether it runs and what it logs",
                now - self.since,
            )
