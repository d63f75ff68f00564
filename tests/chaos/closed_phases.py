"""The answers of each phase of a run, by name, as the coordinator's spool had them when the phase was closed.

The spool forgets the rows of a round two rounds later. SQLite triggers note them within the transaction that
closes the phase. So no answer is missed, whichever process is killed, and no answer is noted that did not
become durable.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.coordinator.spool.spool import Spool

# Rows that are deleted because their round is over are older than every checkpoint; a rollback deletes the others.
TRIGGERS: Final = """
CREATE TABLE noted_closed (round INTEGER, phase TEXT, answers TEXT);
CREATE TRIGGER note_closed AFTER INSERT ON closed BEGIN
    INSERT INTO noted_closed SELECT NEW.round, NEW.phase, json_group_object(device, lower(hex(object)))
    FROM accepted WHERE round = NEW.round AND phase = NEW.phase
    AND device IN (SELECT value FROM json_each(NEW.devices));
END;
CREATE TRIGGER note_reopened AFTER DELETE ON closed WHEN OLD.round >= (SELECT MIN(round) FROM checkpoint) BEGIN
    INSERT INTO noted_closed VALUES (OLD.round, OLD.phase, NULL);
END;
"""


@dataclass(frozen=True)
class ClosedPhase:
    round: int
    phase: str
    answers: Mapping[str, str]  # Device -> name of its answer.
    reopened: bool = False  # The round began again, so the phase counted no answer.


def note_closed_phases(folder: Path) -> None:
    """Install the triggers in a spool folder whose coordinator has not begun yet."""
    Spool(folder).close()
    with contextlib.closing(sqlite3.connect(folder / "spool.sqlite")) as db:
        db.executescript(TRIGGERS)


def closed_phases(folder: Path) -> list[ClosedPhase]:
    """Return the phases in the order in which they were closed or reopened."""
    with contextlib.closing(sqlite3.connect(folder / "spool.sqlite")) as db:
        rows = db.execute("SELECT round, phase, answers FROM noted_closed ORDER BY rowid").fetchall()
    return [
        ClosedPhase(number, phase, json.loads(answers or "{}"), reopened=answers is None)
        for number, phase, answers in rows
    ]
