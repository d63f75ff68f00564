"""The spool's index: one SQLite file whose rows carry checksums, and a copy of it.

The copy replaces the file if the file is damaged. A new copy is made each time that a round begins. So a
damaged index costs at most the updates of one round, which are requested again.

The file has a format number (PRAGMA user_version). An older format is upgraded, and the old file is kept. A
newer format is refused.

If the file system allows it, SQLite writes a log next to the file (WAL mode), and a commit is one fsync.
The log is merged into the file each time that a round begins.
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

from protofleet.coordinator.spool.epochs import epochs_to_keep, next_epoch
from protofleet.coordinator.spool.log_base import LogBase, log_beside, memory_beside, put_foreign_log_aside
from protofleet.protocol.storage.disk import Disk, is_full, is_locked, name_full
from protofleet.protocol.storage.store import DamagedError, NewerFormatError

log = logging.getLogger("protofleet.coordinator")

FORMAT: Final = 1
INDEX_FILE: Final = "spool.sqlite"
PAGE_BYTES: Final = 1024  # the log takes a page for every row that is changed
SCHEMA: Final = {
    "run": "one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT, settings TEXT, epoch INTEGER",
    "checkpoint": "id INTEGER PRIMARY KEY, round INTEGER, attempt INTEGER, cohort TEXT, members TEXT, object TEXT",
    "accepted": "round INTEGER, phase TEXT, device TEXT, base BLOB, object BLOB, examples INTEGER, metrics TEXT",
    "heard": "sender TEXT PRIMARY KEY, boot INTEGER, sequence INTEGER",
    "closed": "round INTEGER, phase TEXT, devices TEXT",
}
# Tables that are created if they are missing, without a new format number: a version that does not know
# them ignores them.
ADDED_TABLES: Final = {
    "crossed": "round INTEGER, epoch INTEGER, counts TEXT",
    "asked": "base BLOB PRIMARY KEY, number INTEGER, round INTEGER",
    "answered": "device TEXT PRIMARY KEY, round INTEGER, base BLOB, boot INTEGER, holds INTEGER",
    # Who held a device name at the boot in `heard`.
    "holders": "sender TEXT PRIMARY KEY, holder TEXT, boot INTEGER",
    "aside": "round INTEGER, device TEXT, words TEXT",  # device "": the run has diverged in that round
    "tried": "round INTEGER, device TEXT",  # devices whose updates were put aside one at a time, for a while
    "fleet": "one INTEGER PRIMARY KEY CHECK (one = 1), devices INTEGER",  # number when the run began
    "judged": "round INTEGER PRIMARY KEY, accuracy TEXT, words TEXT",  # for policy.stop; words: why it ended the run
    "named": "one INTEGER PRIMARY KEY CHECK (one = 1), digest BLOB, names TEXT",  # names of the classes
    "ended": "one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER, at INTEGER",  # the round before a pause
    "places": "device TEXT, object BLOB, file INTEGER, start INTEGER, size INTEGER",  # of updates in the log
    "epochs": "epoch INTEGER PRIMARY KEY",  # epochs of the coordinators that have claimed the folder
    "log_base": "one INTEGER PRIMARY KEY CHECK (one = 1), file INTEGER, base INTEGER",
}
UNIQUE: Final = {
    "accepted": "round, phase, device",
    "closed": "round, phase",
    "crossed": "round, epoch",
    "aside": "round, device",
    "tried": "round, device",
    "places": "device, object",
}
Value = str | int | bytes | None


class RunMismatchError(ValueError):
    """The error raised when the folder holds another run."""


class FencedError(RunMismatchError):
    """The error raised when another coordinator has taken over the run."""


class SpoolConnection(sqlite3.Connection):
    """A connection whose errors show whether the disk is full.

    While another program holds the lock, a read waits, because its caller is in the middle of a frame or a
    step. A write raises an error, because it belongs to a command, and a command can be carried out again
    later. `keep_waiting` is called after each 5 s without the lock; if it returns False, a read raises an
    error too.
    """

    keep_waiting: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        try:
            super().__init__(path, isolation_level=None, check_same_thread=False)
        except sqlite3.OperationalError as error:
            name_full(error, self._folder)
            raise

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        logged = False
        while True:
            try:
                cursor = super().execute(statement, values)
            except sqlite3.OperationalError as error:
                name_full(error, self._folder)
                if not (is_locked(error) and self.keep_waiting()):
                    raise
                if self.in_transaction or not statement.startswith("SELECT"):
                    raise
                if not logged:
                    log.error("the run's index is held by another program (%s): waiting to read it", error)
                logged = True
            else:
                if logged:
                    log.warning("the run's index can be read again")
                return cursor


def check_run(folder: Path, name: str, settings: str) -> None:
    """Raise RunMismatchError if the folder belongs to another run; write nothing.

    This check is made before an old coordinator is stopped for a new one.
    """
    path = folder / INDEX_FILE
    if not path.exists():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_read_only(path)) as db:
        if row := db.execute("SELECT name, settings FROM run").fetchone():
            _demand_the_same(folder, row, (name, settings))


def _read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _demand_the_same(folder: Path, held: tuple[str, str], asked: tuple[str, str]) -> None:
    if held != asked:
        raise RunMismatchError(
            f"{folder} holds run {held[0]} with other settings; go on with those that it was begun with, or give "
            "this one another name"
        )


class Index:
    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder, self.disk = folder, disk
        self.path, self._copy = folder / INDEX_FILE, folder / "spool.copy.sqlite"
        self.restored_from_copy = False  # the copy has replaced a damaged index
        self.epoch: int | None = None  # set once the folder is claimed
        self._deferred: list[Callable[[], None]] = []  # the deferred writes of the open transaction, in order
        self._log_base: LogBase | None = None  # None where SQLite keeps no log
        # Only the thread of the service uses it, never the thread of the worker.
        self.db = self._open()
        if self._has_log:
            self._log_base = LogBase.of(self.db)
            self._merge_log()

    def claim(self, name: str, settings: str, clock: int, least: int = 0) -> int:
        """Claim the folder and return the new epoch.

        The new epoch is above every earlier epoch, even if the clock was set back.
        """
        self.epoch = None
        with self.last_transaction():  # two coordinators that start at once must not get the same epoch
            row = self.db.execute("SELECT name, settings, epoch FROM run").fetchone()
            if row:
                _demand_the_same(self.folder, (row[0], row[1]), (name, settings))
            known = {each for (each,) in self.db.execute("SELECT epoch FROM epochs")}
            known |= {row[2]} if row else set()  # an earlier version stored only this epoch
            epoch = max(clock, least, next_epoch(known, clock))
            self.put("run", 1, name, settings, epoch)
            self.db.execute("DELETE FROM epochs")
            for each in epochs_to_keep(known, epoch):
                self.put("epochs", each)
        self.epoch = epoch
        return epoch

    def take_over(self) -> None:
        """Claim the folder again, so that the coordinator that has claimed it can write no more."""
        row = self.db.execute("SELECT name, settings FROM run").fetchone()
        if row is None:
            raise RunMismatchError(f"{self.folder} holds no run")
        self.claim(row[0], row[1], 0)

    @contextlib.contextmanager
    def transaction(self, durable: bool = True) -> Iterator[None]:
        """Open a transaction that is committed at its end, with all deferred writes."""
        self._begin()
        try:
            yield
            self.disk.commit(self.db, self.path, durable)
        except BaseException:
            self.db.rollback()
            raise
        self._deferred.clear()
        if self._log_base:
            self._log_base.is_in_log = True

    @contextlib.contextmanager
    def undurable_transaction(self) -> Iterator[None]:
        """Open a transaction for data that nothing depends on.

        If SQLite keeps a log, the transaction does not wait for the disk, and the next commit makes the
        data durable.
        """
        if self._log_base is None or self.has_deferred:
            with self.transaction():
                yield
            return
        self._set_synchronous(self.db, "NORMAL")
        try:
            with self.transaction(durable=False):
                yield
        finally:
            self._set_synchronous(self.db, "FULL")

    def defer(self, write: Callable[[], None]) -> None:
        """Write as part of the next transaction, and write again if that transaction is rolled back.

        No message may depend on the write before the transaction is committed.
        """
        self._begin()
        try:
            write()
        except BaseException:
            self.db.rollback()
            raise
        self._deferred.append(write)

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred)

    def _begin(self) -> None:
        """Begin a transaction, or raise FencedError if another coordinator has claimed the folder since.

        So a coordinator that hung and was replaced cannot write any more.
        """
        if self.db.in_transaction:
            return
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.check_claim()
            if self._log_base and not self._log_base.is_in_log:
                self.put("log_base", 1, *self._log_base.row)
            for write in self._deferred:
                write()
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
    def detect_takeover(self) -> Iterator[None]:
        """Raise FencedError instead of FileNotFoundError if another coordinator has taken over the folder."""
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

    @contextlib.contextmanager
    def last_transaction(self) -> Iterator[None]:
        """Open the last transaction of a log, merge the log into the file, and renew the copy."""
        with self.transaction():
            yield
            if self._log_base:
                self._log_base.begin_next()
                self.put("log_base", 1, *self._log_base.row)
        self._merge_log()
        self.keep_copy()

    def _merge_log(self) -> None:
        """Merge the log into the file; a full disk is no error.

        On a full disk the log stays, and SQLite reads it together with the file.
        """
        if self._log_base is None:
            return
        try:
            self.disk.merge_log(self.db, self.path)
        except sqlite3.OperationalError as error:
            if not (is_full(error) or is_locked(error)):
                raise
        log_file = log_beside(self.path)
        if not log_file.exists() or log_file.stat().st_size == 0:
            self._log_base.merged()

    def keep_copy(self) -> None:
        with self.disk.fresh(self._copy) as fresh:
            self.db.execute("VACUUM INTO ?", (str(fresh),))

    def close(self) -> None:
        self.db.close()

    def _open(self) -> SpoolConnection:
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if fresh and not self._copy.exists() and not any((self.folder / "snapshots").glob("*.body")):
            return self._connect()
        try:
            if fresh:
                raise DamagedError("the file is missing or empty, although the run has begun")
            put_foreign_log_aside(self.path, self.disk)
            return self._connect()
        except NewerFormatError as fault:
            if self._copy_is_of_a_later_version():
                raise
            self._restore_copy(DamagedError(f"its format is {fault.found}"))
        except DamagedError as fault:
            self._restore_copy(fault)
        return self._connect()

    def _copy_is_of_a_later_version(self) -> bool:
        """Return whether the copy has a newer format than this version, or cannot be read.

        A later version upgrades both files when it starts. If only the index is newer, its format number is
        damaged.
        """
        if not self._copy.exists():
            return True
        uri = f"{self._copy.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
                return bool(format_of(db) > FORMAT)
        except sqlite3.DatabaseError:
            return True

    def _connect(self) -> SpoolConnection:
        db = SpoolConnection(self.path)
        try:
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # page size of a new file
            self._has_log = (
                _set_journal_mode(db, "WAL" if self.disk.is_local(self.folder) else "DELETE") == "wal"
            )
            # Without a log, FULL does not sync the folder after the last commit, so a power cut could undo
            # this commit.
            self._set_synchronous(db, "FULL" if self._has_log else "EXTRA")
            self._upgrade(db)
            self._add_missing_tables(db)
            check_integrity(db)
        except sqlite3.DatabaseError as error:
            db.close()
            if is_full(error) or is_locked(error):
                raise  # it is no damage
            raise DamagedError(str(error)) from None
        except BaseException:
            db.close()
            raise
        return db

    def _set_synchronous(self, db: sqlite3.Connection, mode: str) -> None:
        db.execute(f"PRAGMA synchronous = {mode if self.disk.durable else 'OFF'}")

    def _upgrade(self, db: sqlite3.Connection) -> None:
        found = format_of(db)
        if found > FORMAT:
            raise NewerFormatError(self.path, found, FORMAT)
        if found == FORMAT:
            return
        tables = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if tables:
            self._keep_old_format(found)
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

    def _add_missing_tables(self, db: sqlite3.Connection) -> None:
        if missing := ADDED_TABLES.keys() - tables_in(db):
            db.execute("BEGIN IMMEDIATE")
            for table in sorted(missing):
                unique = f", UNIQUE ({UNIQUE[table]})" if table in UNIQUE else ""
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({ADDED_TABLES[table]}, seal BLOB{unique})")
            self.disk.commit(db, self.path)

    def _keep_old_format(self, found: int) -> None:
        kept = self.path.with_suffix(f".format-{found}")
        with self.disk.fresh(kept) as fresh:
            shutil.copyfile(self.path, fresh)
        log.info(
            "%s was of format %d, it is of format %d now; the old one is %s", self.path, found, FORMAT, kept
        )

    def _restore_copy(self, fault: DamagedError) -> None:
        kept = self.path.with_suffix(".damaged")
        with self.disk.fresh(self.path) as fresh:
            self._copy_checked(fresh, fault)
            if self.path.exists():
                self.disk.rename(self.path, kept)
            for beside in (
                f"{self.path.name}-journal",
                log_beside(self.path).name,
                memory_beside(self.path).name,
            ):
                self.disk.remove(self.path.with_name(beside))
        self.restored_from_copy = True
        log.error(
            "%s was damaged (%s): its copy has taken its place; it is kept as %s", self.path, fault, kept.name
        )

    def _copy_checked(self, fresh: Path, fault: DamagedError) -> None:
        try:
            shutil.copyfile(self._copy, fresh)
            with contextlib.closing(SpoolConnection(fresh)) as db:
                check_integrity(db)
        except FileNotFoundError:
            reason = f"{self.path} is damaged ({fault}), and there is no {self._copy.name}"
        except (DamagedError, sqlite3.DatabaseError) as error:
            if is_full(error):
                raise
            reason = f"{self.path} is damaged ({fault}), and so is {self._copy.name} ({error})"
        else:
            return
        raise DamagedError(f"{reason}; {how_to_go_on(self.folder)}")


def _set_journal_mode(db: sqlite3.Connection, mode: str) -> str:
    """Set the journal mode and return the mode that is active then.

    The log is only merged on request, and not at a commit.
    """
    db.execute("PRAGMA wal_autocheckpoint = 0")
    return str(db.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0])


def format_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def how_to_go_on(folder: Path) -> str:
    """Describe how to go on with a coordinator's folder that cannot be used.

    The result of the run is stored nowhere else.
    """
    return (
        f"put {folder} back from a backup, where an older one goes on with `protofleet go-on {folder.parent} "
        "--from-round N` and loses what came after it; or begin the run anew under another name"
    )


def tables_in(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def row_checksum(table: str, *values: Value) -> bytes:
    """Return 16 bytes that seal a row, because SQLite does not notice a flipped bit in a number or a name."""
    plain = [value.hex() if isinstance(value, bytes) else value for value in values]
    return hashlib.sha256(json.dumps([table, *plain]).encode()).digest()[:16]


def check_integrity(db: sqlite3.Connection) -> None:
    """Check every page and every row; raise DamagedError if one of them is damaged."""
    try:
        if (verdict := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise DamagedError(str(verdict)[:200])
        for table in [*SCHEMA, *(ADDED_TABLES.keys() & tables_in(db))]:
            for *values, checksum in db.execute(f"SELECT * FROM {table}"):
                if row_checksum(table, *values) != checksum:
                    raise DamagedError(f"a row of {table} is not what was written")
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if is_full(error) or is_locked(error):
            raise
        raise DamagedError(str(error)[:200]) from None
