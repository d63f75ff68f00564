"""The link between an index file and the SQLite log next to it.

SQLite reads any complete log as if it belonged to the file next to it. But a person may have put an older
index back into a newer folder, or may have copied both files while they were written. Then SQLite would mix
two states. So the index file contains a number, which changes whenever a log is merged into the file. The
first transaction of a log stores the number that the index file had when the log began.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.storage.disk import Disk

log = logging.getLogger("protofleet.coordinator")

QUERY: Final = "SELECT file, base FROM log_base"


@dataclass
class LogBase:
    """Two numbers of the index file: its present number (`file`), and its number when the log began (`base`)."""

    file: int
    base: int
    # True if the log already stores the number. The first transaction of a log must store it.
    is_in_log: bool = True

    @classmethod
    def of(cls, db: sqlite3.Connection) -> LogBase:
        """Read `file` and `base`; both are 0 before the first log."""
        found = db.execute(QUERY).fetchone()
        return cls(*found) if found else cls(0, 0)

    @property
    def row(self) -> tuple[int, int]:
        return self.file, self.base

    def begin_next(self) -> None:
        """Give the file a new number in the open transaction. The number becomes valid when the log is merged."""
        if self.file == self.base:
            self.file = secrets.randbits(62)

    def merged(self) -> None:
        """Record that the log is merged into the file, so that the next log begins with the file's present number."""
        self.base, self.is_in_log = self.file, False


def log_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def memory_beside(path: Path) -> Path:
    """Return the path of SQLite's shared-memory file. If the file is missing, SQLite creates it again."""
    return path.with_name(f"{path.name}-shm")


def put_foreign_log_aside(path: Path, disk: Disk) -> None:
    """Rename the log if it does not belong to the index file next to it.

    This must be done before SQLite opens the log.
    """
    log_file = log_beside(path)
    if not log_file.exists() or log_file.stat().st_size == 0 or _belongs(path):
        return
    aside = log_file.with_name(f"{log_file.name}.foreign")
    disk.rename(log_file, aside)
    disk.remove(memory_beside(path))
    log.error(
        "%s does not belong to the present version of %s, for example because a backup was put back: the log is not "
        "used, and is kept as %s", log_file, path.name, aside.name,
    )  # fmt: skip


def _belongs(path: Path) -> bool:
    try:
        alone = _row_of(path, "&immutable=1")
    except sqlite3.DatabaseError:
        return True  # The file is damaged. Its copy will replace it, and the log will be deleted.
    try:
        together = _row_of(path)
    except sqlite3.OperationalError:
        return True  # The files are locked or cannot be read. The code that opens them next reports this.
    except sqlite3.DatabaseError:
        return False
    return alone is None or together is None or alone[0] in together


def _row_of(path: Path, how: str = "") -> tuple[int, int] | None:
    """Read `file` and `base` from the index file and its log. If `how` is "&immutable=1", SQLite ignores the log."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{how}", uri=True)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'log_base'").fetchone():
            return None
        found: tuple[int, int] | None = db.execute(QUERY).fetchone()
        return found
