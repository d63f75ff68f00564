"""ledger.sqlite: what happened and what it cost, append-only. It influences nothing.

A ledger that cannot be written (full disk, locked file) says so once, and goes on with what happens after there is
room again: a moment "gap" says how many rows are missing. The run does not stop for it. A round has one row, however
often a coordinator that died had to replay it.

A row waits for the disk, and a device can cause rows. So that it holds up nobody: comings and goings are written with
what happens next, and one device causes PER_DEVICE rows between two rounds; a row "left_out" counts the rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from protofleet.coordinator.observe.journal import SEEN, RoundRecord
from protofleet.coordinator.observe.rounds_file import sealed_line, whole_record

log = logging.getLogger("protofleet.ledger")

Row: TypeAlias = tuple[Any, ...]

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS boots (at REAL, epoch INTEGER, software TEXT, plan TEXT);
CREATE TABLE IF NOT EXISTS moments (at REAL, what TEXT, round INTEGER, phase TEXT, device TEXT, details TEXT);
CREATE TABLE IF NOT EXISTS rounds (
    at REAL, round INTEGER, attempt INTEGER, kind TEXT, seconds REAL, participants INTEGER, late INTEGER,
    dropped INTEGER, record TEXT);
CREATE TABLE IF NOT EXISTS bytes (
    round INTEGER, direction TEXT, kind TEXT, payload INTEGER, wire INTEGER);
CREATE TABLE IF NOT EXISTS accuracy (round INTEGER, view TEXT, domain TEXT, split TEXT, value REAL);
"""
PRESENCE: Final = frozenset({"joined", "left"})
PER_DEVICE: Final = 64
PATIENCE: Final = 5000  # milliseconds; a lock is waited for once, not for each row
MOMENT: Final = "INSERT INTO moments VALUES (?, ?, ?, ?, ?, ?)"


class Ledger:
    def __init__(self, path: Path, epoch: int, software: str, plan: str) -> None:
        self._db: sqlite3.Connection | None = None
        self._missing = 0  # rows, since it could last be written
        self._last_round = 0
        self._waiting: list[Row] = []  # comings and goings
        self._caused: Counter[str] = Counter()  # rows by each device, since a round ended
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.executescript(SCHEMA)
            self._last_round = self._db.execute("SELECT COALESCE(MAX(round), 0) FROM rounds").fetchone()[0]
        except sqlite3.Error as error:
            self._give_up(error)
        self._write(("INSERT INTO boots VALUES (?, ?, ?, ?)", [(time.time(), epoch, software, plan)]))

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        if what == SEEN:
            return
        if device := details.get("device"):
            self._caused[device] += 1
            if self._caused[device] > PER_DEVICE:
                return
        row = moment_row(what, details)
        if what in PRESENCE:
            self._waiting.append(row)
        else:
            self._write((MOMENT, [row]))

    def round_ended(self, record: RoundRecord) -> None:
        r = record
        if r.round <= self._last_round:
            return
        self._last_round = r.round
        row = (
            time.time(), r.round, r.attempt, r.kind, r.seconds, len(r.participants), len(r.late),
            len(r.dropped), sealed_line(asdict(r)).rstrip(),
        )  # fmt: skip
        crossed = [
            (r.round, way, kind, r.payload.get(way, {}).get(kind, 0), wire)
            for way, kinds in r.wire.items()
            for kind, wire in kinds.items()
        ]
        measured = [
            (r.round, view, domain, split, value)
            for split, views in (("test", r.accuracy), ("validation", r.validation))
            for view, domains in views.items()
            for domain, value in domains.items()
        ]
        self._write(
            (MOMENT, self._left_out()),
            ("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [row]),
            ("INSERT INTO bytes VALUES (?, ?, ?, ?, ?)", crossed),
            ("INSERT INTO accuracy VALUES (?, ?, ?, ?, ?)", measured),
        )

    def records(self) -> dict[int, dict[str, Any]]:
        """The lines of the rounds, for a rounds.jsonl that has lost some."""
        return _records(self._db) if self._db else {}

    def close(self) -> None:
        self._write((MOMENT, self._left_out()))
        if self._db:
            self._db.close()

    def _left_out(self) -> list[Row]:
        """And a new count for everybody."""
        more = {device: n - PER_DEVICE for device, n in self._caused.items() if n > PER_DEVICE}
        self._caused.clear()
        return [moment_row("left_out", more)] if more else []

    def _write(self, *rest: tuple[str, list[Row]]) -> None:
        """All of them or none."""
        batches, self._waiting = ((MOMENT, self._waiting), *rest), []
        if self._db is None:
            return
        gap = [moment_row("gap", {"rows": self._missing})] if self._missing else []
        try:
            self._db.execute(f"PRAGMA busy_timeout = {0 if self._missing else PATIENCE}")
            with self._db:
                self._db.execute("BEGIN")
                for statement, rows in ((MOMENT, gap), *batches):
                    self._db.executemany(statement, rows)
        except sqlite3.OperationalError as error:  # a full disk, a lock: it may pass
            if not self._missing:
                log.error("the ledger is not written for now: %s", error)
            self._missing += sum(len(rows) for _, rows in batches)
        except (sqlite3.Error, OverflowError) as error:  # OverflowError: a number that SQLite cannot hold
            self._give_up(error)
        else:
            self._missing = 0

    def _give_up(self, error: Exception) -> None:
        log.error("the ledger is not written any more: %s", error)
        self._db = None


def moment_row(what: str, details: Mapping[str, Any]) -> Row:
    return (
        time.time(), what, details.get("round"), details.get("phase"), details.get("device"),
        json.dumps(details, allow_nan=False),
    )  # fmt: skip


def records_in(path: Path) -> dict[int, dict[str, Any]]:
    """Of a run that is over, for whoever only reads."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return _records(db)
    except sqlite3.Error:
        return {}


def _records(db: sqlite3.Connection) -> dict[int, dict[str, Any]]:
    """Those that are what was written."""
    known = {field.name for field in fields(RoundRecord)}
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        rows = db.execute("SELECT round, record FROM rounds").fetchall()
        found = {number: whole_record(str(record), known) for number, record in rows}
        return {number: table for number, table in found.items() if table and table.get("round") == number}
    return {}
