"""Whether a run has come to anything: what never ended a round has nothing that other settings could spoil."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

LINES: Final = ("rounds.jsonl", "rounds.copy.jsonl")
INDEXES: Final = ("spool.sqlite", "spool.copy.sqlite")
FIRST_ROUND: Final = 1


def has_ended_a_round(run: Path) -> bool:
    """By its lines, even damaged ones, and should they be gone, by a snapshot later than that of its start."""
    if any((run / name).exists() and (run / name).stat().st_size for name in LINES):
        return True
    return any(_last_round(run / "coordinator" / name) > FIRST_ROUND for name in INDEXES)


def _last_round(index: Path) -> int:
    """Of its newest snapshot; of an index that cannot be read, none is known."""
    if not index.exists():
        return 0
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(index)) as db:
        found = db.execute("SELECT COALESCE(MAX(round), 0) FROM checkpoint").fetchone()
        return int(found[0])
    return 0
