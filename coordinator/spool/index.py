"""The spool's index: one SQLite file whose rows have checksums, and a copy of this file.

If the file is damaged, the copy replaces it. A new copy is made each time that a round begins. So a damaged
index loses at most the updates of one round, and the coordinator requests these updates again.

The file has a format number (PRAGMA user_version). A file with an older format is upgraded, and the old file
is kept. A file with a newer format is refused.

If the file system allows it, SQLite writes a log next to the file (WAL mode), so that a commit needs only one
fsync. The log is merged into the file each time that a round begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.spool.epochs import epochs_to_keep, next_epoch
from protofleet.coordinator.spool.log_base import LogBase, log_beside, memory_beside, put_foreign_log_aside
from protofleet.protocol.storage.disk import Disk, is_full, is_locked, name_full
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.user_error import MISUSED, UserError

log = logging.getLogger("protofleet.coordinator")

FORMAT: Final = 1
INDEX_FILE: Final = "spool.sqlite"
# Size of a page in bytes. It is small, because the log stores a whole page for every row that is changed.
PAGE_BYTES: Final = 1024
SCHEMA: Final = {
    "run": "one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT, settings TEXT, epoch INTEGER",
    "checkpoint": "id INTEGER PRIMARY KEY, round INTEGER, attempt INTEGER, cohort TEXT, members TEXT, object TEXT",
    "accepted": "round INTEGER, phase TEXT, device TEXT, base BLOB, object BLOB, examples INTEGER, metrics TEXT",
    "heard": "sender TEXT PRIMARY KEY, boot INTEGER, sequence INTEGER",
    "closed": "round INTEGER, phase TEXT, devices TEXT",
}
# Tables that are created if they are missing. They do not need a new format number, because older versions ignore
# these tables.
ADDED_TABLES: Final = {
    "crossed": "round INTEGER, epoch INTEGER, counts TEXT",
    "asked": "base BLOB PRIMARY KEY, number INTEGER, round INTEGER",
    "answered": "device TEXT PRIMARY KEY, round INTEGER, base BLOB, boot INTEGER, holds INTEGER",
    # Holder of each device name. A row is used only if its boot number is equal to the number in the table `heard`.
    "holders": "sender TEXT PRIMARY KEY, holder TEXT, boot INTEGER",
    # Holder of the device's name when it sent an answer that the server half keeps.
    "answer_holders": "device TEXT, round INTEGER, holder TEXT",
    # If the device is "", the run has diverged in that round.
    "aside": "round INTEGER, device TEXT, words TEXT",
    "tried": "round INTEGER, device TEXT",  # Devices whose updates were left out in trials, one at a time.
    # Number of devices when the run began.
    "fleet": "one INTEGER PRIMARY KEY CHECK (one = 1), devices INTEGER",
    # Validation accuracy, for policy.stop. If the run ended with the round, the column `words` holds the reason.
    "judged": "round INTEGER PRIMARY KEY, accuracy TEXT, words TEXT",
    "named": "one INTEGER PRIMARY KEY CHECK (one = 1), digest BLOB, names TEXT",  # Names of the classes.
    # The last round that was followed by a pause, and the time at which that round ended.
    "ended": "one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER, at INTEGER",
    # Places of updates in the log of small updates.
    "places": "device TEXT, object BLOB, file INTEGER, start INTEGER, size INTEGER",
    # Late updates of buffered rounds: the age of the task of an accepted update, in rounds.
    "late": "round INTEGER, phase TEXT, device TEXT, staleness INTEGER",
    # Training tasks of a run with buffered rounds, and the cohorts to which they were sent.
    "tasks": "round INTEGER PRIMARY KEY, phase TEXT, base BLOB, cohort TEXT",
    # Updates that the method has used, in a run with a codec.
    "used": "device TEXT, round INTEGER, phase TEXT",
    # The chain of broadcasts, in a run with [codec.down].
    "chain": "place INTEGER PRIMARY KEY, round INTEGER, phase TEXT, base BLOB, reference BLOB, step BLOB, exact BLOB",
    "epochs": "epoch INTEGER PRIMARY KEY",  # Epochs of the coordinators that have claimed the folder.
    "log_base": "one INTEGER PRIMARY KEY CHECK (one = 1), file INTEGER, base INTEGER",
    # The end of the training before its last round.
    "ended_early": "one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER, words TEXT, cause TEXT",
    "paused": "one INTEGER PRIMARY KEY CHECK (one = 1), words TEXT",  # Reason why an operator has paused the run.
    # Number of rounds of the run, if an operator has changed it.
    "total": "one INTEGER PRIMARY KEY CHECK (one = 1), rounds INTEGER",
    # The snapshot of another run with which the run has started.
    "origin": "one INTEGER PRIMARY KEY CHECK (one = 1), run TEXT, round INTEGER, object TEXT",
    # How often the run has gone on behind its devices, and the first round of this generation.
    "generation": "one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER, round INTEGER",
    # Commands of operators with their results. A command that is sent again gets the same result.
    "commands": "number INTEGER PRIMARY KEY, id BLOB, at INTEGER, operator TEXT, verb TEXT, verdict TEXT, words TEXT",
    # Boot and newest sequence number of each operator, at its last command that came through the broker.
    "sequences": "operator TEXT PRIMARY KEY, boot INTEGER, newest INTEGER, holder TEXT",
}
# Tables that only some runs need. They are created when a run needs them.
OPTIONAL_TABLES: Final = {
    # Bytes that were published for all devices, the month, and the run's name in the ledger of the month.
    "budgeted": "one INTEGER PRIMARY KEY CHECK (one = 1), published INTEGER, month INTEGER, name TEXT",
    # Milliseconds that devices have worked for the run, and its lift among the runs that share the devices, or NULL.
    "device_time": "one INTEGER PRIMARY KEY CHECK (one = 1), worked INTEGER, lift INTEGER",
    # Updates with noise that were accepted, in a run with [dp].
    "releases": "device TEXT, object BLOB, run TEXT, round INTEGER, phase TEXT, attempt INTEGER, kind TEXT, "
    "unit TEXT, sigma REAL, sensitivity REAL, numbers INTEGER, delta REAL",
    # Devices of the last masked sums, in a run whose sums may not differ by only a few devices.
    "summed": "round INTEGER, attempt INTEGER, stage TEXT, devices TEXT",
    "spent": "device TEXT PRIMARY KEY, own INTEGER, since INTEGER, before_month INTEGER, largest INTEGER",
}
UNIQUE: Final = {
    "accepted": "round, phase, device",
    "closed": "round, phase",
    "late": "round, phase, device",
    "crossed": "round, epoch",
    "answer_holders": "device, round",
    "aside": "round, device",
    "tried": "round, device",
    "places": "device, object",
    "used": "device, round, phase",
    "commands": "id",
    "summed": "round, attempt, stage",
}
Value = str | int | float | bytes | None


@dataclass(frozen=True, slots=True)
class DatabaseForm:
    """The files and the tables of a database with checksums."""

    file: str
    copy: str
    what: str  # Name of the database in log lines.
    owner: str  # Table with the one row that names the owner of the folder and its epoch.
    schema: Mapping[str, str]
    unique: Mapping[str, str]
    way_out: Callable[
        [Path], str
    ]  # Returns words about what to do if neither the file nor its copy can be used.
    added: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


class RunMismatchError(UserError, ValueError):
    """The error raised when the folder belongs to another run."""

    exit_code = MISUSED


class FencedError(RunMismatchError):
    """The error raised when another coordinator has taken over the folder."""


class MissingFolderError(DamagedError):
    """The error raised when the folder was moved or deleted while it was in use."""


class LaterEpochError(RunMismatchError):
    """The error raised when a coordinator of a later epoch has claimed the folder before."""


class SpoolConnection(sqlite3.Connection):
    """A connection that waits for a lock before it reads, and whose errors show whether the disk is full.

    Another program may hold the lock of the file. In this case, a read waits, because its caller is in the middle of
    a frame or a step. A write raises an error, because a write belongs to a command, and the command is carried out
    again later. While a read waits, the function `keep_waiting` is called every 5 s. If the function returns
    False, the read raises an error too.
    """

    keep_waiting: Callable[[], bool] = staticmethod(lambda: True)
    what = "the run's index"  # Name of the database in log lines.

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
                    log.error(
                        "%s is held by another program (%s); the coordinator waits to read the index",
                        self.what,
                        error,
                    )
                logged = True
            else:
                if logged:
                    log.warning("%s can be read again", self.what)
                return cursor


def check_run(folder: Path, name: str, settings: str) -> None:
    """Raise RunMismatchError if the folder belongs to another run; do not change the folder.

    This check is made before the running coordinator is stopped for a new one.
    """
    path = folder / INDEX_FILE
    if not path.exists():
        return
    with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(path)) as db:
        if row := db.execute("SELECT name, settings FROM run").fetchone():
            _demand_the_same(folder, row, (name, settings))


def index_of(run: Path) -> Path:
    """Return the path of the index of a run, whose folder is `run`."""
    return run / "coordinator" / INDEX_FILE


def claimed_epoch(folder: Path) -> int:
    """Return the epoch of the coordinator that has claimed the folder; 0 if there is none, or it cannot be read."""
    path = folder / INDEX_FILE
    if path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(path)) as db:
            if row := db.execute("SELECT epoch FROM run").fetchone():
                return int(row[0])
    return 0


def read_only(path: Path) -> sqlite3.Connection:
    """Open the file of an index that another thread or process may use."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _demand_the_same(folder: Path, held: tuple[str, str], asked: tuple[str, str]) -> None:
    if held != asked:
        raise RunMismatchError(
            f"{folder} holds run {held[0]}, which was begun with other settings; go on with the settings of that "
            "run, or give the new run another name"
        )


def how_to_go_on(folder: Path) -> str:
    """Describe for an error message how to go on if a coordinator's folder cannot be used.

    Nothing can restore the state of the run, because it is stored only in this folder.
    """
    return (
        f"put {folder} back from a backup (after an older backup, `protofleet go-on {folder.parent} --from-round N` "
        "continues the run without the lost rounds); or begin the run anew under another name"
    )


SPOOL: Final = DatabaseForm(
    INDEX_FILE, "spool.copy.sqlite", "the run's index", "run", SCHEMA, UNIQUE, how_to_go_on, ADDED_TABLES,
    OPTIONAL_TABLES,
)  # fmt: skip


class Index:
    def __init__(self, folder: Path, disk: Disk, form: DatabaseForm = SPOOL) -> None:
        self.folder, self.disk, self._form = folder, disk, form
        self.path, self._copy = folder / form.file, folder / form.copy
        self.restored_from_copy = False  # True if the file was damaged and its copy has replaced it.
        self.epoch: int | None = None  # Epoch of this coordinator; None until the folder is claimed.
        # The deferred writes of the open transaction, in the order of their calls.
        self._deferred: list[Callable[[], None]] = []
        self._log_base: LogBase | None = None  # None if SQLite keeps no log.
        # Only the thread of the service may use the connection, never the thread of the worker.
        self.db = self._open()
        if self._has_log:
            self._log_base = LogBase.of(self.db)
            self._merge_log()

    def claim(self, name: str, settings: str, clock: int, least: int = 0, exactly: int | None = None) -> int:
        """Claim the folder and return the new epoch.

        The new epoch is higher than every earlier epoch, even if the clock was set back. With `exactly`, the new
        epoch is this one; it may be the present epoch of the folder too.
        """
        self.epoch = None
        # A transaction is needed, because two coordinators that start at the same time must not get the same
        # epoch.
        with self.last_transaction():
            row = self.db.execute(f"SELECT name, settings, epoch FROM {self._form.owner}").fetchone()
            if row:
                _demand_the_same(self.folder, (row[0], row[1]), (name, settings))
            known = {each for (each,) in self.db.execute("SELECT epoch FROM epochs")}
            # An earlier version had no table of epochs. It stored only this epoch.
            known |= {row[2]} if row else set()
            later = next_epoch(known - {exactly}, clock)
            if exactly is not None and later > exactly:
                raise LaterEpochError(
                    f"a coordinator of epoch {later - 1} has claimed {self.folder}, and this one has epoch "
                    f"{exactly}; start this coordinator again"
                )
            epoch = max(clock, least, later) if exactly is None else exactly
            self.put(self._form.owner, 1, name, settings, epoch)
            self.db.execute("DELETE FROM epochs")
            for each in epochs_to_keep(known, epoch):
                self.put("epochs", each)
        self.epoch = epoch
        return epoch

    def take_over(self) -> None:
        """Claim the folder. After that, a coordinator with an earlier claim cannot write to the folder."""
        row = self.db.execute("SELECT name, settings FROM run").fetchone()
        if row is None:
            raise RunMismatchError(f"{self.folder} holds no run")
        self.claim(row[0], row[1], 0)

    @contextlib.contextmanager
    def transaction(self, durable: bool = True) -> Iterator[None]:
        """Open a transaction that also commits all deferred writes."""
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
        """Open a transaction for data that may be lost in a crash.

        If SQLite keeps a log, the transaction does not wait for the disk. The next commit makes its data
        durable.
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
        """Call `write` now, and commit its changes with the next transaction.

        If that transaction is rolled back, the transaction after it calls `write` again. It also does so if the
        disk is full or the file is locked now, because the caller may be between two commands, where nothing
        tries again. No message may depend on these changes before they are committed.
        """
        try:
            self._begin()
            write()
        except BaseException as error:
            self.db.rollback()
            if not (is_full(error) or is_locked(error)):
                raise
        self._deferred.append(write)

    @property
    def has_deferred(self) -> bool:
        return bool(self._deferred)

    def _begin(self) -> None:
        """Begin a transaction, or raise FencedError if another coordinator has claimed the folder.

        So an old coordinator that hung for a while cannot write after a new coordinator has replaced it.
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
        """Raise FencedError if another coordinator has claimed the folder, and MissingFolderError if it is gone."""
        row = self.db.execute(f"SELECT epoch FROM {self._form.owner}").fetchone()
        if row and self.epoch is not None and row[0] != self.epoch:
            raise FencedError(
                f"another coordinator, of epoch {row[0]}, has taken over {self.folder}, so this "
                f"coordinator, of epoch {self.epoch}, stops"
            )
        self.check_in_place()

    def check_in_place(self) -> None:
        """Raise MissingFolderError if the folder is gone; the open file can still be read and written."""
        if not os.path.exists(self.path):  # noqa: PTH110 - a Path would take longer
            raise MissingFolderError(
                f"{self.path} is missing: the folder was moved or deleted while the coordinator used it"
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
        """Open a transaction; after its commit, merge the log into the index and renew the copy of the index."""
        with self.transaction():
            yield
            if self._log_base:
                self._log_base.begin_next()
                self.put("log_base", 1, *self._log_base.row)
        self._merge_log()
        self.keep_copy()

    def _merge_log(self) -> None:
        """Merge the log into the file. A full disk or a locked file does not raise an error here.

        If the merge fails, the log stays, and SQLite reads it together with the file.
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
        """Return whether the copy of the index has a newer format than this version, or cannot be read.

        A later version of this program upgrades both the index and the copy when it starts. So if the index
        seems to have a newer format and the copy does not, the format number of the index is damaged.
        """
        if not self._copy.exists():
            return True
        uri = f"{self._copy.absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
                return bool(format_of(db) > self._form.format)
        except sqlite3.DatabaseError:
            return True

    def _connect(self) -> SpoolConnection:
        db = SpoolConnection(self.path)
        db.what = self._form.what
        try:
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # This sets the page size only if the file is new.
            self._has_log = (
                _set_journal_mode(db, "WAL" if self.disk.is_local(self.folder) else "DELETE") == "wal"
            )
            # If SQLite keeps no log, FULL does not sync the folder after the last commit, so a power failure
            # could undo this commit. EXTRA syncs the folder too.
            self._set_synchronous(db, "FULL" if self._has_log else "EXTRA")
            self._upgrade(db)
            self._add_missing_tables(db)
            check_integrity(db, self._form)
        except sqlite3.DatabaseError as error:
            db.close()
            if is_full(error) or is_locked(error):
                raise  # A full disk or a lock does not mean that the file is damaged.
            raise DamagedError(str(error)) from None
        except BaseException:
            db.close()
            raise
        return db

    def _set_synchronous(self, db: sqlite3.Connection, mode: str) -> None:
        db.execute(f"PRAGMA synchronous = {mode if self.disk.durable else 'OFF'}")

    def _upgrade(self, db: sqlite3.Connection) -> None:
        found = format_of(db)
        known, unique_of = self._form.format, self._form.unique
        if found > known:
            raise NewerFormatError(self.path, found, known)
        if found == known:
            return
        tables = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
        if tables:
            self._keep_old_format(found)
        db.execute("BEGIN IMMEDIATE")
        for table, columns in self._form.schema.items():
            unique = f", UNIQUE ({unique_of[table]})" if table in unique_of else ""
            if tables:
                db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
            db.execute(f"CREATE TABLE {table} ({columns}, seal BLOB{unique})")
            if tables:
                for row in db.execute(f"SELECT * FROM old_{table}").fetchall():
                    marks = ", ".join("?" * (len(row) + 1))
                    db.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, row_checksum(table, *row)))
                db.execute(f"DROP TABLE old_{table}")
        db.execute(f"PRAGMA user_version = {known}")
        self.disk.commit(db, self.path)

    def _add_missing_tables(self, db: sqlite3.Connection) -> None:
        form = self._form
        if missing := form.added.keys() - tables_in(db):
            db.execute("BEGIN IMMEDIATE")
            for table in sorted(missing):
                unique = f", UNIQUE ({form.unique[table]})" if table in form.unique else ""
                db.execute(f"CREATE TABLE IF NOT EXISTS {table} ({form.added[table]}, seal BLOB{unique})")
            self.disk.commit(db, self.path)

    def add_tables(self, names: Collection[str]) -> None:
        """Create those of the optional tables that are missing."""
        if missing := set(names) - tables_in(self.db):
            with self.transaction():
                for table in sorted(missing):
                    self.db.execute(f"CREATE TABLE {table} ({self._form.optional[table]}, seal BLOB)")

    def _keep_old_format(self, found: int) -> None:
        kept = self.path.with_suffix(f".format-{found}")
        with self.disk.fresh(kept) as fresh:
            shutil.copyfile(self.path, fresh)
        log.info(
            "%s was upgraded from format %d to format %d; the old file is %s",
            self.path,
            found,
            self._form.format,
            kept,
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
            "%s was damaged (%s): its copy has taken its place; the damaged file is kept as %s",
            self.path,
            fault,
            kept.name,
        )

    def _copy_checked(self, fresh: Path, fault: DamagedError) -> None:
        try:
            shutil.copyfile(self._copy, fresh)
            with contextlib.closing(SpoolConnection(fresh)) as db:
                check_integrity(db, self._form)
        except FileNotFoundError:
            reason = f"{self.path} is damaged ({fault}), and there is no {self._copy.name}"
        except (DamagedError, sqlite3.DatabaseError) as error:
            if is_full(error):
                raise
            reason = f"{self.path} is damaged ({fault}), and so is {self._copy.name} ({error})"
        else:
            return
        raise DamagedError(f"{reason}; {self._form.way_out(self.folder)}")


def _set_journal_mode(db: sqlite3.Connection, mode: str) -> str:
    """Set the journal mode, and return the mode that is active then.

    Automatic merges of the log at commits are switched off; the log is merged only when the program requests
    it.
    """
    db.execute("PRAGMA wal_autocheckpoint = 0")
    return str(db.execute(f"PRAGMA journal_mode = {mode}").fetchone()[0])


def format_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def tables_in(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def row_checksum(table: str, *values: Value) -> bytes:
    """Return a checksum of 16 bytes for a row, because SQLite does not notice a flipped bit in a number or a name."""
    plain = [value.hex() if isinstance(value, bytes) else value for value in values]
    return hashlib.sha256(json.dumps([table, *plain]).encode()).digest()[:16]


def check_integrity(db: sqlite3.Connection, form: DatabaseForm = SPOOL) -> None:
    """Check every page and every row; raise DamagedError if there is damage."""
    try:
        if (verdict := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise DamagedError(str(verdict)[:200])
        for table in [*form.schema, *({*form.added, *form.optional} & tables_in(db))]:
            for *values, checksum in db.execute(f"SELECT * FROM {table}"):
                if row_checksum(table, *values) != checksum:
                    raise DamagedError(f"the checksum of a row of {table} is wrong")
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if is_full(error) or is_locked(error):
            raise
        raise DamagedError(str(error)[:200]) from None
