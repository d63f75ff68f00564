"""The spool's index: one SQLite file whose rows carry checksums, and a copy for the day on which it is damaged.

The file names its format (PRAGMA user_version). An older format is brought up to date and its file kept beside; a
newer one is refused. The copy is made whenever a round or a phase has been settled, so that a damaged index costs at
most the answers to the open question, which are asked for again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.spool.epochs import after, kept
from protofleet.protocol.storage.disk import Disk, is_full, is_locked
from protofleet.protocol.storage.store import DamagedError, NewerFormatError

log = logging.getLogger("protofleet.coordinator")

FORMAT: Final = 1
SCHEMA: Final = {
    "run": "one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT, settings TEXT, epoch INTEGER",
    "checkpoint": "id INTEGER PRIMARY KEY, round INTEGER, attempt INTEGER, cohort TEXT, members TEXT, object TEXT",
    "accepted": "round INTEGER, phase TEXT, device TEXT, base BLOB, object BLOB, examples INTEGER, metrics TEXT",
    "heard": "sender TEXT PRIMARY KEY, boot INTEGER, sequence INTEGER",
    "closed": "round INTEGER, phase TEXT, devices TEXT",
}
LATER: Final = {  # made where they are missing: to a version that does not know them they say nothing
    "crossed": "round INTEGER, epoch INTEGER, counts TEXT",
    "asked": "base BLOB PRIMARY KEY, number INTEGER, round INTEGER",
    "answered": "device TEXT PRIMARY KEY, round INTEGER, base BLOB, boot INTEGER, holds INTEGER",
    "holders": "sender TEXT PRIMARY KEY, holder TEXT, boot INTEGER",  # of names, at the boots in `heard`
    "aside": "round INTEGER, device TEXT, words TEXT",  # no device: the run has ended there
    "named": "one INTEGER PRIMARY KEY CHECK (one = 1), digest BLOB, names TEXT",  # what the classes are called
    "epochs": "epoch INTEGER PRIMARY KEY",  # of the coordinators that have claimed the folder
}
UNIQUE: Final = {
    "accepted": "round, phase, device",
    "closed": "round, phase",
    "crossed": "round, epoch",
    "aside": "round, device",
}
Value = str | int | bytes | None


class RunMismatchError(ValueError):
    """The folder holds another run."""


class FencedError(RunMismatchError):
    """The run goes on elsewhere."""


class WaitingConnection(sqlite3.Connection):
    """A read outlasts another program's lock: what asks for it is in the middle of a frame or a step.

    A write raises. It is begun by a command, which can wait and be performed again. `waits_on` is asked whenever the
    lock has not gone for 5 s; a read raises too where it says no.
    """

    waits_on: Callable[[], bool] = staticmethod(lambda: True)

    def execute(self, words: str, values: Any = (), /) -> sqlite3.Cursor:
        said = False
        while True:
            try:
                found = super().execute(words, values)
            except sqlite3.OperationalError as error:
                if not (is_locked(error) and self.waits_on()):
                    raise
                if self.in_transaction or not words.startswith("SELECT"):
                    raise
                if not said:
                    log.error("the run's index is held by another program (%s): waiting to read it", error)
                said = True
            else:
                if said:
                    log.warning("the run's index can be read again")
                return found


class Index:
    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self.disk = folder, disk
        self.path, self._copy = folder / "spool.sqlite", folder / "spool.copy.sqlite"
        self.fell_back = False  # the copy has taken the place of a damaged index
        self.epoch: int | None = None  # once the folder is claimed
        # One thread at a time uses it: the one that owns the service. The worker never does.
        self.db = self._opened()

    def claim(self, name: str, settings: str, clock: int, least: int = 0) -> int:
        """The folder is this coordinator's; its epoch is above every earlier one even if the clock went back."""
        self.epoch = None
        with self.transaction():  # two that start at once must not claim the same epoch
            row = self.db.execute("SELECT name, settings, epoch FROM run").fetchone()
            if row and (row[0], row[1]) != (name, settings):
                raise RunMismatchError(
                    f"{self.folder} holds run {row[0]} with other settings; go on with those that it was "
                    "begun with, or give this one another name"
                )
            known = {each for (each,) in self.db.execute("SELECT epoch FROM epochs")}
            known |= {row[2]} if row else set()  # a version that kept only one has claimed it
            epoch = max(clock, least, after(known, clock))
            self.put("run", 1, name, settings, epoch)
            self.db.execute("DELETE FROM epochs")
            for each in kept(known, epoch):
                self.put("epochs", each)
        self.epoch = epoch
        self.keep_copy()
        return epoch

    def take_over(self) -> None:
        """Whoever conducts the run that is here does so no more."""
        row = self.db.execute("SELECT name, settings FROM run").fetchone()
        if row is None:
            raise RunMismatchError(f"{self.folder} holds no run")
        self.claim(row[0], row[1], 0)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Only of the coordinator that claimed the folder last: one that was thought dead may not write behind it."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.check_claim()
            yield
            self.disk.commit(self.db, self.path)
        except BaseException:
            self.db.rollback()
            raise

    def check_claim(self) -> None:
        row = self.db.execute("SELECT epoch FROM run").fetchone()
        if row and self.epoch is not None and row[0] != self.epoch:
            raise FencedError(
                f"another coordinator, of epoch {row[0]}, has taken over {self.folder}; this one, of epoch "
                f"{self.epoch}, stops"
            )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A file that has gone may be the work of a coordinator that has taken over: say that instead."""
        try:
            yield
        except FileNotFoundError:
            self.check_claim()
            raise

    def put(self, table: str, *values: Value) -> None:
        marks = ", ".join("?" * (len(values) + 1))
        self.db.execute(
            f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, row_checksum(table, *values))
        )

    def keep_copy(self) -> None:
        fresh = self._copy.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        try:
            self.db.execute("VACUUM INTO ?", (str(fresh),))
        except sqlite3.Error:
            fresh.unlink(missing_ok=True)
            raise
        self._place(fresh, self._copy)

    def close(self) -> None:
        self.db.close()

    def _opened(self) -> WaitingConnection:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if fresh and not self._copy.exists() and not any((self.folder / "snapshots").glob("*.body")):
            return self._connected()
        try:
            if fresh:
                raise DamagedError("it is gone or empty, and the run has begun")
            return self._connected()
        except NewerFormatError as fault:
            if self._copy_is_of_a_later_version():
                raise
            self._take_the_copy(DamagedError(f"its format is {fault.found}"))
        except DamagedError as fault:
            self._take_the_copy(fault)
        return self._connected()

    def _copy_is_of_a_later_version(self) -> bool:
        """A later version writes both as it begins. If it has not, the number that the index bears is damaged."""
        if not self._copy.exists():
            return True
        place = f"{self._copy.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(place, uri=True)) as db:
                return bool(format_of(db) > FORMAT)
        except sqlite3.DatabaseError:
            return True

    def _connected(self) -> WaitingConnection:
        db = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, factory=WaitingConnection
        )
        try:
            # FULL would leave the last commit to the folder's next sync: a power cut could take it back.
            db.execute(f"PRAGMA synchronous = {'EXTRA' if self.disk.durable else 'OFF'}")
            self._up_to_date(db)
            self._with_later_tables(db)
            check(db)
        except sqlite3.DatabaseError as error:
            db.close()
            if is_full(error, self.folder) or is_locked(error):
                raise  # said as such
            raise DamagedError(str(error)) from None
        except BaseException:
            db.close()
            raise
        return db

    def _up_to_date(self, db: sqlite3.Connection) -> None:
        found = format_of(db)
        if found > FORMAT:
            raise NewerFormatError(self.path, found, FORMAT)
        if found == FORMAT:
            return
        tables = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if tables:
            self._keep_old(found)
        db.execute("BEGIN IMMEDIATE")
        for table, columns in SCHEMA.items():
            unique = f", UNIQUE ({UNIQUE[table]})" if table in UNIQUE else ""
            if tables:
                db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
            db.execute(f"CREATE TABLE {table} ({columns}, seal BLOB{unique})")
            if tables:
                for row in db.execute(f"SELECT * FROM old_{table}").fetchall():
                    marks = ", ".join("?" * (len(row) + 1))
                    db.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, row_checksum(table, *row)))
                db.execute(f"DROP TABLE old_{table}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
        self.disk.commit(db, self.path)

    def _with_later_tables(self, db: sqlite3.Connection) -> None:
        if missing := LATER.keys() - tables_in(db):
            db.execute("BEGIN IMMEDIATE")
            for table in sorted(missing):
                unique = f", UNIQUE ({UNIQUE[table]})" if table in UNIQUE else ""
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({LATER[table]}, seal BLOB{unique})")
            self.disk.commit(db, self.path)

    def _keep_old(self, found: int) -> None:
        kept = self.path.with_suffix(f".format-{found}")
        shutil.copyfile(self.path, fresh := kept.with_suffix(".new"))
        self._place(fresh, kept)
        log.info(
            "%s was of format %d, it is of format %d now; the old one is %s", self.path, found, FORMAT, kept
        )

    def _take_the_copy(self, fault: DamagedError) -> None:
        try:
            shutil.copyfile(self._copy, fresh := self.path.with_suffix(".new"))
        except FileNotFoundError:
            words = f"{self.path} is damaged ({fault}), and there is no {self._copy.name}"
            raise DamagedError(f"{words}; {way_on(self.folder)}") from None
        try:
            with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db:
                check(db)
        except (DamagedError, sqlite3.DatabaseError) as error:
            fresh.unlink(missing_ok=True)
            raise DamagedError(
                f"{self.path} is damaged ({fault}), and so is {self._copy.name} ({error}); {way_on(self.folder)}"
            ) from None
        kept = self.path.with_suffix(".damaged")
        if self.path.exists():
            self.disk.rename(self.path, kept)
        self.disk.remove(self.path.with_name(f"{self.path.name}-journal"))
        self._place(fresh, self.path)
        self.fell_back = True
        log.error(
            "%s was damaged (%s): its copy has taken its place; it is kept as %s", self.path, fault, kept.name
        )

    def _place(self, fresh: Path, target: Path) -> None:
        self.disk.sync(fresh)
        self.disk.rename(fresh, target)
        self.disk.sync(self.folder)


def format_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def way_on(folder: Path) -> str:
    """Out of a coordinator's folder that cannot be used. What the run has learned is in it alone."""
    return (
        f"put {folder} back from a backup, where an older one goes on with `protofleet go-on {folder.parent} "
        "--from-round N` and loses what came after it; or begin the run anew under another name"
    )


def tables_in(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def row_checksum(table: str, *values: Value) -> bytes:
    """What a row says, in 16 bytes: a flipped bit in a number or a name is no fault to SQLite."""
    plain = [value.hex() if isinstance(value, bytes) else value for value in values]
    return hashlib.sha256(json.dumps([table, *plain]).encode()).digest()[:16]


def check(db: sqlite3.Connection) -> None:
    """Every page and every row, or DamagedError. What is here decides how a run goes on: it must not be guessed."""
    try:
        if (words := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise DamagedError(str(words)[:200])
        for table in [*SCHEMA, *(LATER.keys() & tables_in(db))]:
            for *values, sealed in db.execute(f"SELECT * FROM {table}"):
                if row_checksum(table, *values) != sealed:
                    raise DamagedError(f"a row of {table} is not what was written")
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if is_locked(error):
            raise
        raise DamagedError(str(error)[:200]) from None
