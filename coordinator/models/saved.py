"""Read a global model from the folder of a coordinator, even while the coordinator runs.

Nothing in the folder is changed, even if files are damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.models.best import best_folder, read_best
from protofleet.coordinator.spool.columns import names_in
from protofleet.coordinator.spool.index import row_checksum
from protofleet.protocol.storage.store import BODY, DamagedError
from protofleet.protocol.wire.arrays import Body

SPOOL: Final = "spool.sqlite"


@dataclass(frozen=True)
class SavedRun:
    """A run in the folder of a coordinator.

    `round` is the round that begins with the newest state, or 0 if the folder holds no state.
    """

    folder: Path
    name: str
    plan: bytes
    class_names: tuple[str, ...]
    round: int
    object: str
    rounds: int = 0  # Number of rounds that an operator has set; 0 if it is the number in the plan.

    def newest(self) -> Body:
        return read_state(self.folder / "snapshots", self.object)

    def best(self) -> tuple[int, Body] | None:
        """Return the round that began with the best model, and the model; None if no best model is stored."""
        if (kept := read_best(self.folder)) is None:
            return None
        return kept.round, read_state(best_folder(self.folder), kept.object.hex())


def read_saved_run(folder: Path) -> SavedRun | None:
    """Read the run in the folder of a spool; return None if the folder holds no run.

    Raise DamagedError if the run cannot be read.
    """
    path = folder / SPOOL
    if not path.exists():
        return None
    try:
        with contextlib.closing(_opened(path)) as db:
            run = _row(db, "run", "SELECT * FROM run")
            newest = _row(db, "checkpoint", "SELECT * FROM checkpoint ORDER BY round DESC, id DESC LIMIT 1")
            named, total = _named(db), _total(db)
    except sqlite3.Error as error:
        raise DamagedError(f"{path} cannot be read: {error}") from None
    if run is None:
        return None
    number, name = (newest[1], newest[5]) if newest else (0, "")
    return SavedRun(folder, run[1], run[2].encode(), named, number, name, total)


def read_state(folder: Path, name: str) -> Body:
    path = folder / f"{name}{BODY}"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing, so the model cannot be read") from None
    if hashlib.sha256(data).hexdigest() != name:
        raise DamagedError(f"{path} is damaged: its bytes do not match the hash in its name")
    return Body(lambda start, stop: data[start:stop], len(data))


def _opened(path: Path) -> sqlite3.Connection:
    """Open the database for reading only, even if the folder is write-protected.

    In a write-protected folder, SQLite cannot create the shared-memory file of its log. In this case, the
    database is opened with the option `immutable`. The option states that no process changes the file.
    """
    where = f"{path.absolute().as_uri()}?mode=ro"
    db = sqlite3.connect(where, uri=True)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        return sqlite3.connect(f"{where}&immutable=1", uri=True)
    return db


def _row(db: sqlite3.Connection, table: str, query: str) -> Any:
    """Return the first row without its checksum, or raise DamagedError if the checksum is wrong."""
    row = db.execute(query).fetchone()
    if row is None:
        return None
    *values, seal = row
    if row_checksum(table, *values) != seal:
        raise DamagedError(f"a row of {table} in {SPOOL} is damaged: its checksum is wrong")
    return values


def _total(db: sqlite3.Connection) -> int:
    try:
        row = _row(db, "total", "SELECT * FROM total")
    except sqlite3.OperationalError:  # An earlier version began the run.
        return 0
    return int(row[1]) if row else 0


def _named(db: sqlite3.Connection) -> tuple[str, ...]:
    try:
        row = _row(db, "named", "SELECT * FROM named")
        return tuple(names_in(row[2])) if row else ()
    except sqlite3.OperationalError:  # The run was begun by an earlier version, which stored no class names.
        return ()
    except json.JSONDecodeError:
        return ()
