"""The file of the queue: one SQLite file with the runs and the results of commands, and a copy of this file.

The rows have checksums. The copy is made again with each commit, and takes the place of a damaged file.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from protofleet.coordinator.devices.labels import NO_LABELS, DeviceLabels
from protofleet.coordinator.queue.commands import Decision, QueueCommand
from protofleet.coordinator.queue.settle import Change
from protofleet.coordinator.queue.states import FINAL, PAUSED, STARTING, QueuedRun
from protofleet.coordinator.spool.index import DatabaseForm, Index, RunMismatchError, read_only
from protofleet.protocol.storage.disk import Disk

QUEUE_FILE: Final = "service.sqlite"
KEPT_SECONDS: Final = 7 * 86_400  # Seconds for which the result of a command is kept.
MOST_RESULTS: Final = 10_000  # Largest number of results that are kept.
MOST_OF_ONE: Final = (
    2_000  # Largest number of results of one operator, who cannot displace those of the others.
)
TYPES: Final = {"str": "TEXT", "int": "INTEGER"}
# The fields of a row that have a table of their own, because an earlier version made the table of runs without them.
OF_GENERATION: Final = ("generation", "kept_from", "restored")
OF_RUN: Final = tuple(one for one in fields(QueuedRun) if one.name not in OF_GENERATION)
COLUMNS: Final = ", ".join(
    f"{one.name} {TYPES[str(one.type)]}{' PRIMARY KEY' if one.name == 'name' else ''}" for one in OF_RUN
)
RESTORED: Final = "restored from a backup; `protofleet resume` goes on if no device is ahead of it"

RESULT: Final = "at, operator, verb, run, verdict, words"


def way_out(folder: Path) -> str:
    """Return words about what to do if the file and its copy are damaged."""
    return (
        f"put {folder} back from a backup; or move {folder} away, start the coordinator, and submit the runs that "
        "are not over again under their names: a run whose folder is there goes on"
    )


FORM: Final = DatabaseForm(
    file=QUEUE_FILE,
    copy="service.copy.sqlite",
    what="the index of the queue",
    owner="service",
    schema={
        "service": "one INTEGER PRIMARY KEY CHECK (one = 1), name TEXT, settings TEXT, epoch INTEGER",
        "epochs": "epoch INTEGER PRIMARY KEY",
        "log_base": "one INTEGER PRIMARY KEY CHECK (one = 1), file INTEGER, base INTEGER",
        "runs": COLUMNS,
        "results": "number INTEGER PRIMARY KEY, operator TEXT, id BLOB, at INTEGER, verb TEXT, run TEXT, "
        "verdict TEXT, words TEXT",
    },
    unique={"results": "operator, id"},
    way_out=way_out,
    added={
        "sequences": "operator TEXT PRIMARY KEY, boot INTEGER, newest INTEGER, holder TEXT",
        "devices": "name TEXT PRIMARY KEY, in_group TEXT, labels TEXT",
        "generations": "run TEXT PRIMARY KEY, generation INTEGER, kept_from INTEGER, restored INTEGER",
        "legacy": "one INTEGER PRIMARY KEY CHECK (one = 1), run TEXT",
    },
)


@dataclass(frozen=True, slots=True)
class QueueResult:
    """A command that was carried out, with its result."""

    at: int
    operator: str
    verb: str
    run: str
    verdict: str
    words: str


def check_queue(folder: Path, federation: str) -> None:
    """Raise RunMismatchError if the folder holds the queue of another federation; do not change the folder.

    This check is made before the coordinator that leads is asked to end.
    """
    path = folder / FORM.file
    if path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(path)) as db:
            _demand_federation(db, folder, federation)


def _demand_federation(db: sqlite3.Connection, folder: Path, federation: str) -> None:
    row = db.execute("SELECT name FROM service").fetchone()
    if row and row[0] != federation:
        raise RunMismatchError(
            f"{folder} holds the queue of the federation {row[0]}, and the settings are for {federation}; set "
            "another `folder`"
        )


class QueueFile:
    def __init__(
        self, folder: Path, federation: str, clock: Callable[[], float], disk: Disk | None = None,
        least: Callable[[Iterable[QueuedRun]], int] = lambda runs: 0,
    ) -> None:  # fmt: skip
        """Open the file and claim it. A process with an earlier claim cannot write to the file any more.

        `least` returns the least epoch of the claim.
        """
        disk = disk or Disk()
        disk.make(folder)
        self._clock, self._index = clock, Index(folder, disk, FORM)
        self._db = self._index.db
        _demand_federation(self._db, folder, federation)
        found = self._db.execute("SELECT * FROM runs ORDER BY number").fetchall()
        self.runs = {run.name: run for *row, _ in found for run in [self._with_generation(QueuedRun(*row))]}
        labelled = self._db.execute("SELECT name, in_group, labels FROM devices")
        # The runs of this process read this mapping, so it is changed in place.
        self.labels = {name: DeviceLabels(group, json.loads(text)) for name, group, text in labelled}
        legacy = self._db.execute("SELECT run FROM legacy").fetchone()
        self.legacy: str = (
            legacy[0] if legacy else ""
        )  # The last run that was chosen as the legacy run, or "".
        self.epoch = self._index.claim(federation, "", int(clock()), least(self.runs.values()))

    def _with_generation(self, run: QueuedRun) -> QueuedRun:
        query = f"SELECT {', '.join(OF_GENERATION)} FROM generations WHERE run = ?"
        row = self._db.execute(query, (run.name,)).fetchone()
        return replace(run, **dict(zip(OF_GENERATION, row, strict=True))) if row else run

    def restore(self, has_begun: Callable[[str], bool]) -> None:
        """Pause all runs that are not over, because the folder came back from a backup.

        `has_begun` returns whether the folder of a run exists. A run that had no folder yet begins when it resumes.
        """
        changed = [
            replace(
                run,
                state=PAUSED,
                reason=RESTORED,
                restored=1,
                revision=run.revision + 1,
                started=0 if run.state == STARTING and not has_begun(run.name) else run.started,
            )
            for run in self.runs.values()
            if run.state not in FINAL
        ]
        if changed:
            self._commit(changed)

    def change(self, change: Change) -> None:
        """Make a change of `settle` durable."""
        run, at = self.runs[change.run], int(self._clock())
        row = replace(
            run,
            state=change.state,
            reason=change.reason,
            revision=run.revision + 1,
            started=run.started or (at if change.state == STARTING else 0),
            ended=run.ended or (at if change.state in FINAL else 0),
            # Nothing is left to do for a run that fails before it starts.
            closed=int(change.closed or (change.state in FINAL and not run.started)),
        )
        self._commit([row])

    def save(self, command: QueueCommand, decision: Decision) -> None:
        """Make the effect of a command and its result durable, in one transaction."""
        self._commit(decision.changed, decision.deleted, (command, decision))
        if decision.labelled is not None:
            device, labels = decision.labelled
            self.labels[device] = labels
            if labels == NO_LABELS:
                del self.labels[device]

    def choose_legacy(self, run: str) -> None:
        """Make durable which run the devices are in whose software follows only one run."""
        with self._index.last_transaction():
            self._index.put("legacy", 1, run)
        self.legacy = run

    def result_of(self, command: QueueCommand) -> QueueResult | None:
        """Return the result of a command that was carried out already."""
        query = f"SELECT {RESULT} FROM results WHERE operator = ? AND id = ?"
        row = self._db.execute(query, (command.operator, command.id)).fetchone()
        return QueueResult(*row) if row else None

    def newest_results(self, run: str, most: int) -> list[QueueResult]:
        """Return the newest commands on a run, the oldest of them first."""
        query = f"SELECT {RESULT} FROM results WHERE run = ? ORDER BY number DESC LIMIT ?"
        return [QueueResult(*row) for row in self._db.execute(query, (run, most))][::-1]

    def newest_of_all(self, most: int) -> list[QueueResult]:
        """Return the newest commands, the oldest of them first."""
        query = f"SELECT {RESULT} FROM results ORDER BY number DESC LIMIT ?"
        return [QueueResult(*row) for row in self._db.execute(query, (most,))][::-1]

    def heard(self) -> dict[str, tuple[int, int, str]]:
        """Return the boot, the newest sequence number and the holder of each operator, at the last stored command."""
        found = self._db.execute("SELECT operator, boot, newest, holder FROM sequences")
        return {name: (boot, newest, holder) for name, boot, newest, holder in found}

    def close(self) -> None:
        self._index.close()

    def _commit(
        self, changed: Iterable[QueuedRun], deleted: Iterable[str] = (),
        done: tuple[QueueCommand, Decision] | None = None,
    ) -> None:  # fmt: skip
        runs = {**self.runs, **{run.name: run for run in changed}}
        with self._index.last_transaction():
            for run in changed:
                self._index.put("runs", *(getattr(run, one.name) for one in OF_RUN))
                self._index.put("generations", run.name, *(getattr(run, name) for name in OF_GENERATION))
            for name in deleted:
                self._db.execute("DELETE FROM runs WHERE name = ?", (name,))
                self._db.execute("DELETE FROM generations WHERE run = ?", (name,))
                del runs[name]
            if done is not None:
                self._put_labels(done[1])
                self._put_result(*done)
        self.runs = runs

    def _put_labels(self, decision: Decision) -> None:
        if decision.labelled is None:
            return
        device, labels = decision.labelled
        if labels == NO_LABELS:
            self._db.execute("DELETE FROM devices WHERE name = ?", (device,))
        else:
            self._index.put("devices", device, labels.group, json.dumps(dict(labels.labels), allow_nan=False))

    def _put_result(self, command: QueueCommand, decision: Decision) -> None:
        at = int(self._clock())
        newest = self._db.execute("SELECT MAX(number) FROM results").fetchone()[0] or 0
        self._index.put(
            "results", newest + 1, command.operator, command.id, at, command.verb, command.run, decision.verdict,
            decision.words,
        )  # fmt: skip
        oldest = newest + 1 - MOST_RESULTS
        self._db.execute("DELETE FROM results WHERE number <= ? OR at < ?", (oldest, at - KEPT_SECONDS))
        self._db.execute(
            "DELETE FROM results WHERE number <= (SELECT number FROM results WHERE operator = ? "
            "ORDER BY number DESC LIMIT 1 OFFSET ?) AND operator = ?",
            (command.operator, MOST_OF_ONE, command.operator),
        )
        if (sender := command.sender) is not None:
            self._index.put("sequences", command.operator, sender.boot, sender.newest, sender.holder)
