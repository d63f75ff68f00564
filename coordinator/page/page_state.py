"""The state of a run on the page, as rows that never change. A change puts a new row in place of the old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from protofleet.coordinator.observe.record import ByKind, RoundRecord
from protofleet.protocol.wire.printable import printable

MOST_DEVICES: Final = 1000  # Largest number of devices that have a row; further devices are only counted.
MOST_ROUNDS: Final = 1000  # Largest number of rounds with a row; the newest rounds are kept.
MOST_LINES: Final = 200  # Largest number of log lines; the newest lines are kept.
MOST_DOMAINS: Final = 64  # Largest number of domains in the row of a round.
LONGEST_NAME: Final = 100  # Largest number of characters of a name from a device.
LONGEST_WORDS: Final = 400  # Largest number of characters of a reason or a log line.

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PageState:
    run: Row
    rounds: tuple[Row, ...]
    devices: Mapping[str, Row]
    heard: Mapping[str, float]  # Device -> Unix time of its last message.
    # Device -> its energy, temperature and bytes at the end of a round, if they are known.
    figures: Mapping[str, Row]

    @property
    def name(self) -> str:
        return str(self.run["run"])

    def table(self) -> dict[str, Any]:
        devices = [
            {**row, "heard": self.heard.get(name), **self.figures.get(name, {})}
            for name, row in self.devices.items()
        ]
        return {**self.run, "rounds": self.rounds, "devices": devices}


def device_row(name: str, domain: str, state: str, reason: str = "") -> Row:
    """Return the row of a device. The domain and the reason may be texts of the device."""
    return {"name": name, "domain": short(domain, LONGEST_NAME), "state": state, "reason": short(reason)}


def round_row(record: RoundRecord, view: str) -> Row:
    """Return the row of a round that has ended, with the accuracy of one view and the bytes on the wire."""
    accuracy = sorted(record.accuracy.get(view, {}).items())[:MOST_DOMAINS]
    return {
        "round": record.round, "kind": record.kind, "seconds": record.seconds,
        "answered": len(record.participants), "asked": len({d for p in record.phases for d in p.asked}),
        "accuracy": {short(domain, LONGEST_NAME): round(value, 6) for domain, value in accuracy if isfinite(value)},
        "up": _kinds(record.wire, "up"), "down": _kinds(record.wire, "down"),
    }  # fmt: skip


def figures_row(record: RoundRecord, device: str, used: Mapping[str, Sequence[int]]) -> Row:
    """Return the known figures of a device at the end of a round.

    These are its joules in the round, its temperature, and its bytes with each limit of the budget.
    """
    row: dict[str, Any] = {}
    if energy := record.energy.get(device):
        row["joules"] = round(sum(energy.values()), 3)
    if device in record.temperature:
        row["celsius"] = round(record.temperature[device], 1)
    if used:
        row["data"] = used
    return row


def _kinds(wire: ByKind, way: str) -> dict[str, int]:
    return dict(sorted(wire.get(way, {}).items()))


def short(text: str, most: int = LONGEST_WORDS) -> str:
    """Return the text without unprintable characters, cut to the length that a row may have."""
    text = printable(text[:most])
    return text if len(text) <= most else f"{text[: most - 3]}..."
