"""A check of the coordinator's disk, read from its files: the row and the bytes of each accepted answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path

from tests.simulator.promises import demand

Row = tuple[int, str, str]  # Round, phase and device.
Devices = tuple[str, ...]
OF_AN_INDEX = "SELECT round, phase, device, object FROM accepted"
OF_A_LOG = "SELECT device, object, file, start, size FROM places"


def check_answers(folder: Path, accepted: dict[Row, bytes], since: int) -> None:
    """Check that each accepted answer since round `since` has its row, and that each row has its bytes."""
    index = folder / "spool.sqlite"
    if not index.exists():
        demand(not accepted, f"I2: {index} is gone")
        return
    with contextlib.closing(sqlite3.connect(index)) as db:
        rows = {(round, phase, device): name for round, phase, device, name in db.execute(OF_AN_INDEX)}
        places = {(device, name): place for device, name, *place in db.execute(OF_A_LOG)}
        oldest = db.execute("SELECT MIN(round) FROM checkpoint").fetchone()[0] or 1
    for (round, phase, device), name in accepted.items():
        what = f"I2: {device}'s answer to round {round} {phase}"
        demand(round < since or rows.get((round, phase, device)) == name, f"{what} has lost its row")
    for (round, phase, device), name in rows.items():
        if round < oldest:
            continue  # Such a row only serves a late repeat; no replay begins before the oldest snapshot.
        whole = hashlib.sha256(bytes_of(folder, device, name, places.get((device, name)))).digest() == name
        demand(whole, f"I2: {device}'s answer to round {round} {phase} counts, and its bytes are gone")


def bytes_of(folder: Path, device: str, name: bytes, place: list[int] | None) -> bytes:
    """Return the bytes of an answer, from the log or from a separate file."""
    if place:
        file, start, size = place
        path = folder / "answers" / f"{file:08}.log"
        return path.read_bytes()[start : start + size] if path.exists() else b""
    path = folder / "updates" / device / f"{name.hex()}.body"
    return path.read_bytes() if path.exists() else b""


def check_ended(folder: Path, round: int, ended: dict[str, Devices]) -> None:
    """Check that only the phases of the current attempt of the round have ended."""
    if not (index := folder / "spool.sqlite").exists():
        return
    with contextlib.closing(sqlite3.connect(index)) as db:
        rows = db.execute("SELECT phase, devices FROM closed WHERE round = ?", (round,)).fetchall()
    for phase, devices in rows:
        words = f"I2: the disk says that {phase} of round {round} has ended with {devices}"
        demand(tuple(json.loads(devices)) == ended.get(phase), f"{words}, and it is {ended.get(phase)}")
