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

from protofleet.coordinator.spool.index import INDEX_FILE, read_only, tables_in
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore

# Number of rounds of a run, and the rounds with which its training has ended early.
ENDS: Final = {
    "total": "SELECT rounds FROM total",
    "ended_early": "SELECT round FROM ended_early",
    "judged": "SELECT round FROM judged WHERE words != ''",
}
START: Final = "start"  # Folder of the snapshot, in the coordinator's folder of the run.


@dataclass(frozen=True, slots=True)
class Origin:
    """A snapshot of another run."""

    run: str
    round: int  # Number of rounds that this run had done.
    object: str  # SHA-256 of the snapshot, as hexadecimal digits.

    def shown(self) -> dict[str, str | int]:
        """Return the run and the round as `show` and summary.json have them."""
        return {"run": self.run, "round": self.round}

    def words(self) -> str:
        return f"the state of {self.run} after round {self.round}"


@dataclass(frozen=True, slots=True)
class SavedStates:
    """The settings of a run, its number of rounds, and its snapshots, the newest first.

    Each snapshot is a pair of the number of rounds done and the SHA-256.
    """

    plan: str
    rounds: int
    snapshots: tuple[tuple[int, str], ...]


def saved_states(folder: Path) -> SavedStates | None:
    """Read the index in a coordinator's folder, which another thread or process may use; None if it has no index."""
    path = folder / INDEX_FILE
    if not path.exists():
        return None
    with contextlib.suppress(sqlite3.Error), contextlib.closing(read_only(path)) as db:
        plan = db.execute("SELECT settings FROM run").fetchone()
        rows = db.execute("SELECT round, object FROM checkpoint ORDER BY round DESC, id DESC").fetchall()
        # An index that this version has not opened yet may lack some tables.
        ends = {
            table: db.execute(query).fetchall() for table, query in ENDS.items() if table in tables_in(db)
        }
        if plan:
            (rounds,) = next(iter(ends.get("total", ())), (json.loads(plan[0])["rounds"],))
            early = [number for table in ("ended_early", "judged") for (number,) in ends.get(table, ())]
            # A snapshot after the last round of training is that of an evaluation, which changes no state.
            done = [(min([number - 1, rounds, *early]), name) for number, name in rows]
            return SavedStates(plan[0], rounds, tuple(done))
    return None


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
