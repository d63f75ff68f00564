"""The costs of a virtual run: the time, and the joules, the money and the bytes of all boards and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from protofleet.coordinator.observe.record import RoundRecord
from protofleet.lab.virtual.federation import VirtualFederation
from protofleet.protocol.settings.budget import GB

DIGITS: Final = 6  # Digits after the decimal point in rounds.jsonl.
SECONDS: Final = "seconds"
BYTES_UP: Final = "bytes_up"
BYTES_DOWN: Final = "bytes_down"
JOULES: Final = "joules"
MONEY: Final = "money"


class VirtualCosts:
    """A sink of the journal that adds the costs since the end of the last round to each record.

    They include the time between rounds, and the work and the bytes of updates that were not used. Money is counted
    only if there is a price.
    """

    def __init__(self, run: VirtualFederation, price_per_gb: float) -> None:
        self._run = run
        prices = {name: one.line.price for name, one in run.fleet.items()}
        self._prices = {name: price_per_gb if price is None else price for name, price in prices.items()}
        self._before: dict[str, float] = dict.fromkeys(self.totals(), 0)

    def totals(self) -> dict[str, float]:
        """Return the costs from the beginning of the run."""
        lines, boards = self._run.lines, self._run.boards
        found: dict[str, float] = {
            SECONDS: self._run.clock.now,
            BYTES_UP: sum(line.up.bytes for line in lines.values()),
            BYTES_DOWN: sum(line.down.bytes for line in lines.values()),
        }
        if any(one.board.watts or one.line.watts for one in self._run.fleet.values()):
            found[JOULES] = sum(board.joules + board.line.joules for board in boards.values())
        if any(self._prices.values()):
            found[MONEY] = sum(line.bytes / GB * self._prices[name] for name, line in lines.items())
        return found

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        """Do nothing, because only the end of a round has costs."""

    def round_ended(self, record: RoundRecord) -> None:
        totals = self.totals()
        record.virtual = {name: round(total - self._before[name], DIGITS) for name, total in totals.items()}
        self._before = totals


def summed(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the costs of all rounds together."""
    found: dict[str, float] = {}
    for line in lines:
        for name, value in line.get("virtual", {}).items():
            found[name] = round(found.get(name, 0) + value, DIGITS)
    return found
