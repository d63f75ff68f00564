"""What the coordinator's disk must hold, read from its files: each answer that was accepted, row and bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path

from tests.simulator.promises import demand

Row = tuple[int, str, str]  # round, phase, device
Devices = tuple[str, ...]
OF_AN_INDEX = "SELECT round, phase, device, object FROM accepted"
OF_A_LOG = "SELECT device, object, file, start, size FROM places"


def check_answers(folder: Path, accepted: dict[Row, bytes], since: int) -> None:
    """Each accepted answer of the rounds from `since` on has its row, and each row its bytes."""
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
            continue  # what a later repetition is told; no replay begins before the oldest snapshot
        whole = hashlib.sha256(bytes_of(folder, device, name, places.get((device, name)))).digest() == name
        demand(whole, f"I2: {device}'s answer to round {round} {phase} counts, and its bytes are gone")


def bytes_of(folder: Path, device: str, name: bytes, place: list[int] | None) -> bytes:
    """Of an answer: from the log, or from a file of its own."""
    if place:
        file, start, size = place
        path = folder / "answers" / f"{file:08}.log"
        return path.read_bytes()[start : start + size] if path.exists() else b""
    path = folder / "updates" / device / f"{name.hex()}.body"
    return path.read_bytes() if path.exists() else b""


def check_ended(folder: Path, round: int, ended: dict[str, Devices]) -> None:
    """No phase of the round has ended but those of the attempt that is in hand."""
    if not (index := folder / "spool.sqlite").exists():
        return
    with contextlib.closing(sqlite3.connect(index)) as db:
        rows = db.execute("SELECT phase, devices FROM closed WHERE round = ?", (round,)).fetchall()
    for phase, devices in rows:
        words = f"I2: the disk says that {phase} of round {round} has ended with {devices}"
        demand(tuple(json.loads(devices)) == ended.get(phase), f"{words}, and it is {ended.get(phase)}")
