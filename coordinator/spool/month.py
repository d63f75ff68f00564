"""The ledger of a calendar month: the bytes of each device in all runs whose folders lie in the same folder.

Each run writes its own total for each device over its earlier total. So a restart counts nothing twice, and several
coordinators may write at the same time. The ledger is one SQLite file next to the folders of the runs.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from protofleet.coordinator.spool.index import read_only, row_checksum
from protofleet.protocol.storage.disk import Disk, is_full, is_locked
from protofleet.protocol.storage.store import DamagedError

log = logging.getLogger("protofleet.coordinator")

LEDGER: Final = "budget.sqlite"
WAIT_SECONDS: Final = 5.0  # Seconds for which a write waits for another coordinator.
KEPT_MONTHS: Final = 100  # Difference of two month numbers that are a year apart: 202711 - 202611.


def month_at(wall: float) -> int:
    """Return the month (UTC) at a Unix time, for example 202611."""
    at = datetime.fromtimestamp(wall, timezone.utc)
    return 100 * at.year + at.month


def end_of_month(wall: float) -> float:
    """Return the Unix time at which the month (UTC) of a Unix time ends."""
    at = datetime.fromtimestamp(wall, timezone.utc)
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
    return datetime(year, month, 1, tzinfo=timezone.utc).timestamp()


def bytes_in_other_runs(folder: Path, run: str, wall: float) -> Counter[str]:
    """Return the bytes of each device in the other runs of the month, or nothing if there is no ledger.

    `run` is the name of the run that is left out, in the ledger.
    """
    if not (folder / LEDGER).exists():
        return Counter()
    with contextlib.closing(MonthLedger(folder, Disk(durable=False), False)) as ledger:
        return ledger.of_others(month_at(wall), run)


class MonthLedger:
    def __init__(self, folder: Path, disk: Disk, is_expected: bool) -> None:
        """Open the ledger in `folder`. If `is_expected`, this run has written to the ledger before."""
        self.path, self._disk = folder / LEDGER, disk
        if is_expected and not self.path.exists():
            log.error(
                "%s is missing, although this run has written to it: it is made again with the bytes of this run. "
                "Until other runs of this month write again, their bytes do not count; if there is a copy of the "
                "file, put it back",
                self.path,
            )
        with self._damage_named():
            self._db = sqlite3.connect(
                self.path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS spent (month INTEGER, run TEXT, device TEXT, bytes INTEGER, seal BLOB, "
                "PRIMARY KEY (month, run, device))"
            )

    def of_others(self, month: int, run: str) -> Counter[str]:
        """Return the bytes of each device in all other runs of a month."""
        found: Counter[str] = Counter()
        with self._damage_named():
            query = "SELECT month, run, device, bytes, seal FROM spent WHERE month = ? AND run != ?"
            for *values, seal in self._db.execute(query, (month, run)):
                if row_checksum("spent", *values) != seal:
                    raise DamagedError(self._damaged("the checksum of a row is wrong"))
                found[values[2]] += values[3]
        return found

    def save(self, month: int, run: str, sizes: Mapping[str, int]) -> bool:
        """Write the bytes of this run's devices; return False if the disk is full or the file is locked."""
        try:
            with self._damage_named():
                self._db.execute("BEGIN IMMEDIATE")
                for device, size in sorted(sizes.items()):
                    row = (month, run, device, size)
                    self._db.execute(
                        "INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?)",
                        (*row, row_checksum("spent", *row)),
                    )
                self._db.execute("DELETE FROM spent WHERE month < ?", (month - KEPT_MONTHS,))
                self._disk.commit(self._db, self.path)
        except BaseException as error:
            if self._db.in_transaction:
                self._db.rollback()
            if not (isinstance(error, Exception) and (is_full(error) or is_locked(error))):
                raise
            log.warning("%s was not written, and is written again later: %s", self.path, error)
            return False
        return True

    def merge(self, other: Path) -> None:
        """Add the rows of another ledger. Of two rows for the same bytes, the larger number is kept."""
        with self._damage_named():
            with contextlib.closing(read_only(other)) as db:
                rows = db.execute("SELECT month, run, device, bytes, seal FROM spent").fetchall()
            if any(row_checksum("spent", *values) != seal for *values, seal in rows):
                raise DamagedError(f"{other} is damaged: the checksum of a row is wrong")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT (month, run, device) DO UPDATE SET "
                "bytes = excluded.bytes, seal = excluded.seal WHERE excluded.bytes > spent.bytes",
                rows,
            )
            self._disk.commit(self._db, self.path)

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if is_full(error) or is_locked(error):
                raise
            raise DamagedError(self._damaged(str(error))) from None

    def _damaged(self, what: str) -> str:
        return (
            f"{self.path}, the ledger of budget.month_bytes_per_device, cannot be used: {what}; put it back from a "
            "copy, or remove it: then each run that goes on writes its own bytes of this month again, but the bytes "
            "of finished runs do not count any more"
        )
