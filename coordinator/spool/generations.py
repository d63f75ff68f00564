"""The generations of a run in the folder of the run: how often it has gone on behind its devices."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from protofleet.coordinator.spool.index import Index, index_of, read_only, tables_in

# The rows of these tables describe what devices of the earlier generation hold, or answers to its questions.
OF_DEVICES = ("asked", "answered", "tasks", "used")
OF_THE_ROUND = ("accepted", "closed", "late")


def begin_generation(index: Index, number: int, newest_round: int) -> bool:
    """Begin the newest round anew in this generation, once; return whether this call has done it.

    The answers to the open round are deleted, because devices of the new generation have not given them.
    """
    if number <= generation_in(index)[0]:
        return False
    with index.last_transaction():
        index.put("generation", 1, number, newest_round)
        for table in OF_DEVICES:
            index.db.execute(f"DELETE FROM {table}")
        for table in OF_THE_ROUND:
            index.db.execute(f"DELETE FROM {table} WHERE round >= ?", (newest_round,))
    return True


def generation_in(index: Index) -> tuple[int, int]:
    """Return the generation of the folder and its first round; (1, 0) before the first new generation."""
    row = index.db.execute("SELECT number, round FROM generation").fetchone()
    return (int(row[0]), int(row[1])) if row else (1, 0)


def read_progress(run: Path) -> tuple[int, int]:
    """Return the newest round and the generation of a run whose folder another thread may use; (0, 1) without one."""
    path = index_of(run)
    found = (0, 1)
    if path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(path)) as db:
            newest = db.execute("SELECT COALESCE(MAX(round), 0) FROM checkpoint").fetchone()[0]
            known = "generation" in tables_in(db)
            row = db.execute("SELECT number FROM generation").fetchone() if known else None
            found = (int(newest), int(row[0]) if row else 1)
    return found
