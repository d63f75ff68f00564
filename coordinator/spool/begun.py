"""The check whether a run has ended at least one round.

If it has not, the run has no results, so its settings may still be changed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

LINES: Final = ("rounds.jsonl", "rounds.copy.jsonl")
INDEXES: Final = ("spool.sqlite", "spool.copy.sqlite")
FIRST_ROUND: Final = 1


def has_ended_a_round(run: Path) -> bool:
    """Return whether the run has ended at least one round.

    A line in rounds.jsonl shows this, even if the line is damaged. If there is no line, a snapshot of round 2
    or of a later round shows this.
    """
    if any((run / name).exists() and (run / name).stat().st_size for name in LINES):
        return True
    return any(_last_round(run / "coordinator" / name) > FIRST_ROUND for name in INDEXES)


def _last_round(index: Path) -> int:
    """Return the round of the newest snapshot; 0 if there is no snapshot or the index cannot be read."""
    if not index.exists():
        return 0
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(index)) as db:
        found = db.execute("SELECT COALESCE(MAX(round), 0) FROM checkpoint").fetchone()
        return int(found[0])
    return 0
