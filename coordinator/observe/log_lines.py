"""The log lines about the result of each round, and about updates that are not used.

The line about an update that is not used gives the reason. Each reason is logged only once for a device in a
round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from protofleet.coordinator.observe.record import ByKind, RoundRecord, sampled_words
from protofleet.protocol.link.meter import human_bytes
from protofleet.runtime.logs import fields

log = logging.getLogger("protofleet.coordinator")


class LogLines:
    """A sink of the journal that writes log lines."""

    def __init__(self, view: str, rounds: Callable[[], int]) -> None:
        """Set up the sink; `view` is the view whose accuracy is logged, and `rounds` returns the number of rounds."""
        self._view, self._rounds = view, rounds
        # Device and reason of each line about an update in the open round.
        self._said: set[tuple[str, str]] = set()

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        if what == "lacking":
            log.warning("%s", details["reason"])
        if what != "dropped":  # Other code logs all other kinds of entries.
            return
        refusal = str(details["device"]), str(details["reason"])
        if refusal in self._said:
            return
        self._said.add(refusal)
        log.warning(
            "round %d %s: the answer of %s is %s: %s",
            details["round"], details["phase"], refusal[0], details["verdict"], refusal[1],
        )  # fmt: skip

    def round_ended(self, record: RoundRecord) -> None:
        self._said.clear()
        asked = {device for phase in record.phases for device in phase.asked}
        by_domain = record.accuracy.get(self._view, {})
        accuracy = fmean(by_domain.values()) if by_domain else None
        up, down = total(record.payload, "up"), total(record.payload, "down")
        named = (
            f"round {record.round} of {self._rounds()}" if record.kind == "training" else "final evaluation"
        )
        mean = (
            ""
            if accuracy is None
            else f"accuracy {accuracy:.1%} ({self._view}{who_words(record, self._view)}), "
        )
        log.info(
            "%s: %d of %d devices answered, %stensors up %s, down %s%s, %.1f s",
            named, len(record.participants), len(asked), mean, human_bytes(up), human_bytes(down),
            uncoded_words(record), record.seconds,
            extra=fields(
                event="round", round=record.round, answered=len(record.participants), asked=len(asked),
                accuracy=accuracy, bytes_up=up, bytes_down=down,
                seconds=record.seconds,
            ),
        )  # fmt: skip


def uncoded_words(record: RoundRecord) -> str:
    """Return the bytes before coding, for a log line; "" if the run has no codec."""
    if not record.uncoded:
        return ""
    up, down = (human_bytes(total(record.uncoded, way)) for way in ("up", "down"))
    return f" (uncoded up {up}, down {down})"


def who_words(record: RoundRecord, view: str) -> str:
    """Return words that say how many devices measured this view, for a log line.

    Return "" if all present devices were asked to measure it.
    """
    words = sampled_words(record.measured.get(view))
    return f", {words}" if words else ""


def total(kinds: ByKind, way: str) -> int:
    return sum(kinds.get(way, {}).values())
