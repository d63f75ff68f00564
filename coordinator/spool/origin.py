"""The snapshot of another run with which a run starts (`protofleet submit FILE --from RUN`).

The run has a link to the file of the snapshot in its own folder. So it can start although the other run goes on, or
although its folder is deleted.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.coordinator.spool.index import INDEX_FILE, read_only
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore

START: Final = "start"  # Folder of the snapshot, in the coordinator's folder of the run.


@dataclass(frozen=True, slots=True)
class Origin:
    """A snapshot of another run."""

    run: str
    round: int  # Number of rounds that this run had done.
    object: str  # SHA-256 of the snapshot, as hexadecimal digits.

    def words(self) -> str:
        return f"the state of {self.run} after round {self.round}"


@dataclass(frozen=True, slots=True)
class SavedStates:
    """The settings of a run, and its snapshots as pairs of the rounds done and the SHA-256, the newest first."""

    plan: str
    snapshots: tuple[tuple[int, str], ...]


def saved_states(folder: Path) -> SavedStates | None:
    """Read the index in a coordinator's folder, which another thread or process may use; None if it has no index."""
    path = folder / INDEX_FILE
    if not path.exists():
        return None
    with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(path)) as db:
        plan = db.execute("SELECT settings FROM run").fetchone()
        rows = db.execute("SELECT round, object FROM checkpoint ORDER BY round DESC, id DESC").fetchall()
        if plan:
            last = _last_training(db, json.loads(plan[0])["rounds"])
            return SavedStates(plan[0], tuple((min(number - 1, last), name) for number, name in rows))
    return None


def _last_training(db: sqlite3.Connection, planned: int) -> int:
    """Return the last round of training. A later snapshot is that of an evaluation, which changes no state."""
    total = db.execute("SELECT rounds FROM total").fetchone()
    early = db.execute(
        "SELECT round FROM ended_early UNION SELECT round FROM judged WHERE words != ''"
    ).fetchall()
    return min([int(total[0]) if total else planned, *(int(number) for (number,) in early)])


def link_snapshot(source: Path, target: Path, run: str, disk: Disk) -> Origin | None:
    """Link the newest whole snapshot of one coordinator's folder into another; return None if there is none."""
    store, tried = ObjectStore(target / START, disk=disk, make=False), set[str]()
    while states := saved_states(source):
        left = [one for one in states.snapshots if one[1] not in tried]
        for number, name in left:
            tried.add(name)
            if store.link(bytes.fromhex(name), source / "snapshots"):
                return Origin(run, number, name)
        if (
            not left
        ):  # Otherwise the run has gone on meanwhile, and has deleted what this process wanted to link.
            break
    return None
