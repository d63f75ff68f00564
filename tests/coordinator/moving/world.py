"""Folders of coordinators that can be moved, and a disk whose process is killed before one of its steps."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from dataclasses import replace

import numpy as np

from protofleet.coordinator.moving.place import CoordinatorPlace, demand_here
from protofleet.coordinator.queue.commands import QueueCommand, Submission, decide
from protofleet.coordinator.queue.queue_file import QueueFile
from protofleet.coordinator.queue.settle import Change
from protofleet.coordinator.queue.states import FAILED, FINISHED, RUNNING, STARTING
from protofleet.coordinator.spool.epochs import save_epoch
from protofleet.coordinator.spool.month import MonthLedger
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.storage.disk import Disk

NOW, FEDERATION = 1_790_000_000, "lab"
EXPERIMENT = "rounds = 3"


class KilledError(BaseException):
    """The process is killed; no `except Exception` may catch this."""


class DyingDisk(Disk):
    """A disk whose process is killed just before a step, counted from 1, and does nothing after that."""

    def __init__(self, deadly=0):
        super().__init__(durable=False)
        self.deadly, self.taken = deadly, []

    def before_step(self, step, what):
        self.taken.append(f"{step} {getattr(what, 'name', what)}")
        if 0 < self.deadly <= len(self.taken):
            raise KilledError


def begin_run(folder, name, seed=1.0):
    """Make the folder of a run that is in its second round."""
    spool = Spool(folder / name / "coordinator", durable=False)
    spool.start_run(name, EXPERIMENT, NOW)
    for number in (1, 2):
        state = {"w": np.full(300, seed + number, np.float32)}
        spool.save(number, 1, ["one", "two"], {}, state)
    spool.close()
    (folder / name / "rounds.jsonl").write_text(f'{{"round": 1, "run": "{name}"}}\n')


def queue_place(runs):
    """Make the folder of a queue: "red" and "blue" run, "old" has finished, "bad" has failed, "next" waits."""
    queue = QueueFile(runs / ".queue", FEDERATION, lambda: NOW, Disk(durable=False))
    for number, name in enumerate(("red", "blue", "old", "bad", "next")):
        command = QueueCommand(bytes([number]) * 16, "local:ann", "submit", name)
        queue.save(command, decide(command, queue.runs, NOW, Submission(EXPERIMENT, 3)))
        if name != "next":
            begin_run(runs, name, seed=number)
            queue.change(Change(name, STARTING, ""))
            end = {"old": FINISHED, "bad": FAILED}.get(name, RUNNING)
            queue.change(Change(name, end, "because", closed=end != RUNNING))
    save_epoch(runs, FEDERATION, queue.epoch)
    queue.close()
    ledger = MonthLedger(runs, Disk(durable=False), False)
    ledger.save(202611, "red.1", {"one": 500, "two": 700})
    ledger.close()
    (runs / "settings.version").write_text("7\n")
    return CoordinatorPlace(runs)


def run_place(runs):
    """Make the folder of a coordinator whose file names the run "red", next to another run."""
    begin_run(runs, "red")
    begin_run(runs, "other", seed=5.0)
    save_epoch(runs, FEDERATION, NOW)
    return CoordinatorPlace(runs, "red")


MAKERS = {"queue": queue_place, "run": run_place}


def at(place, runs):
    return replace(place, runs=runs)


def copied(place, runs):
    shutil.copytree(place.runs, runs)
    return at(place, runs)


def starts(place):
    """Return whether a coordinator with the runs of the archive can start here."""
    with contextlib.suppress(ValueError):
        demand_here(place)
        return (place.folder / ("spool.sqlite" if place.run else "service.sqlite")).exists()
    return False


def rows_of(path):
    """Return all rows of a database, without the table that names the process that opened it last."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names - {"log_base"}}


def content_of(place, names=("red",)):
    """Return the content of the runs of these names, and of the queue."""
    found = {}
    tops = [place.runs / name for name in (*names, *([] if place.run else [".queue"]))]
    for path in (path for top in tops for path in sorted(top.rglob("*")) if path.is_file()):
        name = str(path.relative_to(place.runs))
        if path.suffix == ".sqlite":
            if ".copy" not in path.name:
                found[name] = rows_of(path)
        elif path.name not in ("moved.json", "unpacked.json") and "sqlite" not in path.name:
            found[name] = path.read_bytes()
    return found
