"""What survives a coordinator: the snapshot at the round's start, the cohort, and every accepted answer.

An answer is accepted only once its bytes and its row are on the disk. One SQLite file is the index;
tensors lie beside it as objects. `recover` gives back exactly what a replay of the round needs.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.events import Recovered
from methods.base import Member
from protocol.disk import Disk
from protocol.messages import Arrays
from protocol.store import DamagedError, ObjectStore

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS run (
    one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT, settings TEXT, epoch INTEGER);
CREATE TABLE IF NOT EXISTS checkpoint (
    id INTEGER PRIMARY KEY, round INTEGER, attempt INTEGER, cohort TEXT, members TEXT, object TEXT);
CREATE TABLE IF NOT EXISTS accepted (
    round INTEGER, phase TEXT, device TEXT, base BLOB, object BLOB, examples INTEGER, metrics TEXT,
    UNIQUE (round, phase, device));
CREATE TABLE IF NOT EXISTS heard (sender TEXT PRIMARY KEY, boot INTEGER, sequence INTEGER);
CREATE TABLE IF NOT EXISTS closed (round INTEGER, phase TEXT, devices TEXT, UNIQUE (round, phase));
"""


class RunMismatchError(ValueError):
    """The folder holds another run."""


class FencedError(RunMismatchError):
    """The run goes on elsewhere."""


@dataclass(frozen=True, slots=True)
class Accepted:
    device: str
    base: bytes
    object: bytes
    examples: int
    metrics: Mapping[str, float]


class Spool:
    """One folder of one run. `durable=False` spares the fsyncs of a simulation."""

    def __init__(self, folder: Path, durable: bool = True, disk: Disk | None = None) -> None:
        self.folder, self.disk = folder, disk or Disk(durable)
        self.snapshots = ObjectStore(folder / "snapshots", disk=self.disk)
        # A replay makes them again.
        self.broadcasts = ObjectStore(folder / "broadcasts", durable=False, disk=self.disk)
        self._stores: dict[str, ObjectStore] = {}
        self._epoch: int | None = None  # once the folder is claimed
        # One thread at a time uses it: the one that owns the service. The worker never does.
        self._db = sqlite3.connect(folder / "spool.sqlite", isolation_level=None, check_same_thread=False)
        with self._whole():
            # FULL would leave the last commit to the folder's next sync: a power cut could take it back.
            self._db.execute(f"PRAGMA synchronous = {'EXTRA' if self.disk.durable else 'OFF'}")
            self._db.executescript(SCHEMA)

    def store(self, device: str) -> ObjectStore:
        if device not in self._stores:
            self._stores[device] = ObjectStore(self.folder / "updates" / device, disk=self.disk)
        return self._stores[device]

    def start_run(self, name: str, settings: str, clock: int) -> int:
        """Claim the folder; the new epoch comes back, above every earlier one even if the clock went back."""
        self._epoch = None
        with self._transaction() as db:  # two that start at once must not claim the same epoch
            row = db.execute("SELECT name, settings, epoch FROM run").fetchone()
            if row and (row[0], row[1]) != (name, settings):
                raise RunMismatchError(f"{self.folder} holds run {row[0]} with other settings")
            epoch = max(clock, row[2] + 1 if row else 0)
            db.execute("INSERT OR REPLACE INTO run VALUES (1, ?, ?, ?)", (name, settings, epoch))
        self._epoch = epoch
        return epoch

    def save(
        self, round: int, attempt: int, cohort: Sequence[str], members: Mapping[str, Member], state: Arrays
    ) -> None:
        """A new generation; the one before it is kept, everything older goes."""
        name = self.snapshots.put(state).object.hex()
        roster = json.dumps([[m.device, m.examples, list(m.counts)] for m in members.values()])
        with self._transaction() as db:
            db.execute(
                "INSERT INTO checkpoint (round, attempt, cohort, members, object) VALUES (?, ?, ?, ?, ?)",
                (round, attempt, json.dumps(list(cohort)), roster, name),
            )
            db.execute("DELETE FROM checkpoint WHERE id <= (SELECT MAX(id) FROM checkpoint) - 2")
            db.execute("DELETE FROM accepted WHERE round < ?", (round,))
            db.execute("DELETE FROM closed WHERE round < ?", (round,))
        rows = self._db.execute("SELECT object FROM checkpoint").fetchall()
        self.snapshots.keep({bytes.fromhex(object_name) for (object_name,) in rows})
        self._prune_updates()

    def state(self) -> Arrays | None:
        """The server half's state at the last save."""
        row = self._db.execute("SELECT object FROM checkpoint ORDER BY id DESC LIMIT 1").fetchone()
        return self.snapshots.open(bytes.fromhex(row[0])) if row else None

    def accept(self, round: int, phase: str, answer: Accepted, heard: tuple[int, int] = (0, 0)) -> None:
        """One moment for both: the answer counts, and nothing up to its sender's `heard` will be news again."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO accepted VALUES (?, ?, ?, ?, ?, ?, ?)",
                (round, phase, answer.device, answer.base, answer.object, answer.examples,
                 json.dumps(dict(answer.metrics))),
            )  # fmt: skip
            db.execute("INSERT OR REPLACE INTO heard VALUES (?, ?, ?)", (answer.device, *heard))

    def heard(self) -> dict[str, tuple[int, int]]:
        """Of each sender the boot and the newest sequence at its last accepted answer."""
        with self._whole():
            rows = self._db.execute("SELECT sender, boot, sequence FROM heard").fetchall()
            if not all(type(n) is int and n >= 0 for _, boot, sequence in rows for n in (boot, sequence)):
                raise DamagedError("a boot or a sequence is no number")
            return {str(sender): (boot, sequence) for sender, boot, sequence in rows}

    def refuse(self, device: str, object_name: bytes) -> None:
        """Forget an answer that is not used, or refused ones would fill the disk; not one that is in as well."""
        query = "SELECT 1 FROM accepted WHERE device = ? AND object = ?"
        if self._db.execute(query, (device, object_name)).fetchone() is None:
            self.store(device).drop(object_name)

    def bytes_of_answers(self) -> int:
        """What answers take of the disk, unfinished ones with all that they will take."""
        files = (self.folder / "updates").glob("*/*")
        return sum(path.stat().st_size for path in files)

    def close(self, round: int, phase: str, devices: Sequence[str]) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO closed VALUES (?, ?, ?)", (round, phase, json.dumps(devices)))

    def rollback(self, round: int) -> None:
        """The round starts again; answers already in stay good for whoever is asked the same again."""
        with self._transaction() as db:
            db.execute("DELETE FROM closed WHERE round = ?", (round,))

    def answers(self, round: int, phase: str) -> dict[str, Accepted]:
        rows = self._db.execute(
            "SELECT device, base, object, examples, metrics FROM accepted WHERE round = ? AND phase = ?",
            (round, phase),
        )
        return {row[0]: Accepted(row[0], row[1], row[2], row[3], json.loads(row[4])) for row in rows}

    def recover(self) -> tuple[Recovered, dict[str, Member]] | None:
        with self._whole():
            row = self._db.execute(
                "SELECT round, attempt, cohort, members FROM checkpoint ORDER BY id DESC LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            number, attempt, cohort, members = row
            accepted: dict[str, dict[str, bytes]] = {}
            query = "SELECT phase, device, base FROM accepted WHERE round = ?"
            for phase, device, base in self._db.execute(query, (number,)):
                accepted.setdefault(phase, {})[device] = base
            rows = self._db.execute("SELECT phase, devices FROM closed WHERE round = ?", (number,))
            closed = {phase: tuple(names_in(devices)) for phase, devices in rows}
            past = Recovered(number, attempt, tuple(names_in(cohort)), closed, accepted)
            return past, members_in(members)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What is read here decides how a run goes on: damaged, it must not be guessed."""
        try:
            yield
        except sqlite3.OperationalError:  # a full or locked disk: said as such
            raise
        except (sqlite3.DatabaseError, DamagedError) as error:
            raise DamagedError(
                f"{self.folder / 'spool.sqlite'} is damaged ({error}); put it back from a copy, or remove "
                f"{self.folder} and let the run begin anew"
            ) from None

    def shut(self) -> None:
        self._db.close()

    def _prune_updates(self) -> None:
        kept = {bytes(row[0]) for row in self._db.execute("SELECT object FROM accepted")}
        for folder in (self.folder / "updates").glob("*"):
            self.store(folder.name).keep(kept)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Only of the coordinator that claimed the folder last: one that was thought dead may not write behind it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self.check_claim()
            yield self._db
            self.disk.commit(self._db, self.folder / "spool.sqlite")
        except BaseException:
            self._db.rollback()
            raise

    def check_claim(self) -> None:
        """FencedError, where another coordinator has taken over since."""
        row = self._db.execute("SELECT epoch FROM run").fetchone()
        if row and self._epoch is not None and row[0] != self._epoch:
            raise FencedError(
                f"another coordinator, of epoch {row[0]}, has taken over {self.folder}; this one, of epoch "
                f"{self._epoch}, stops"
            )


def names_in(text: object) -> list[str]:
    """A column that holds a list of names, or DamagedError."""
    found = _json(text)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise DamagedError("a list of devices is none")
    return found


def members_in(text: object) -> dict[str, Member]:
    """The roster of a checkpoint, or DamagedError."""
    members = {}
    for row in _list(_json(text)):
        match row:
            case [str(device), int(examples), [*counts]] if all(isinstance(n, int) for n in counts):
                members[device] = Member(device, examples, tuple(int(n) for n in counts))  # type: ignore[call-overload]
            case _:
                raise DamagedError("a row of the roster is none")
    return members


def _list(found: object) -> list[object]:
    if not isinstance(found, list):
        raise DamagedError("the roster is no list")
    return found


def _json(text: object) -> object:
    try:
        return json.loads(text)  # type: ignore[arg-type]  # a column may hold anything
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(f"{type(error).__name__}: {str(error)[:80]}") from None
