"""The rows of the queue that the page shows: all active runs, the next runs, and the runs that ended last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from protofleet.coordinator.page.page_state import Row, short
from protofleet.coordinator.queue.states import FINAL, QueuedRun, in_groups, waits_for

MOST_WAITING: Final = 40  # Largest number of runs with a row that have not begun.
MOST_OVER: Final = 20  # Largest number of runs with a row that are over.


@dataclass(frozen=True, slots=True)
class QueueTable:
    rows: tuple[Row, ...]
    waiting: int = 0  # Number of runs that have not begun and have no row.
    over: int = 0  # Number of runs that are over and have no row.

    @staticmethod
    def of(runs: Mapping[str, QueuedRun], slots: int) -> QueueTable:
        """Return the active runs, then the waiting runs, and the runs that are over, the newest of them first."""
        active, waiting, over = in_groups(runs)
        shown = [*active, *waiting[:MOST_WAITING], *over[:MOST_OVER]]
        rows = tuple(_row(run, waits_for(run, runs, slots)) for run in shown)
        return QueueTable(rows, max(0, len(waiting) - MOST_WAITING), max(0, len(over) - MOST_OVER))

    def table(self) -> dict[str, Any]:
        return {"rows": self.rows, "waiting": self.waiting, "over": self.over}

    def since(self, before: QueueTable | None) -> dict[str, Any]:
        """Return the order of all rows, and the rows that have changed."""
        known = {row["run"]: row for row in before.rows} if before else {}
        changed = [row for row in self.rows if known.get(row["run"]) != row]
        return {**self.table(), "rows": changed, "order": [row["run"] for row in self.rows]}


def _row(run: QueuedRun, reason: str) -> Row:
    return {
        "run": run.name, "state": run.state, "reason": short(reason), "rounds": run.rounds, "priority": run.priority,
        "revision": run.revision, "generation": run.generation,
        "after": run.after, "begun": bool(run.started), "over": run.state in FINAL,
    }  # fmt: skip
