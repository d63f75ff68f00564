"""The run whose files are kept: all its parties were killed in the second round.

That round is closed and has no snapshot after it yet.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofleet.coordinator.spool.spool import Spool
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network
from tests.support.small_federation import POLICY, plan, shard

HERE = Path(__file__).parent
DEVICES = ("device-0", "device-1", "device-2")


def federation(folder: Path) -> Simulation:
    made = replace(plan("fedsa", POLICY.rounds, epochs=1), network=Network("mlp", 8))
    return Simulation(made, {name: shard(i, 12) for i, name in enumerate(DEVICES)}, POLICY, folder)


def stopped(folder: Path) -> Simulation:
    run = federation(folder)
    m, spool = run.service.run.machine, run.service.run.spool
    run.run(until=lambda: m.round == 2 and "train" in spool.recover()[0].closed)
    run.service.run.spool.close()
    return run


def facts(spool: Spool) -> dict[str, Any]:
    """Return the facts that every version must find in the files."""
    remembered = spool.recover()
    assert remembered is not None
    past, members = remembered
    return {
        "round": past.round, "attempt": past.attempt, "cohort": list(past.cohort),
        "closed": {phase: list(devices) for phase, devices in past.closed.items()},
        "accepted": {
            phase: {d: base.hex() for d, base in devices.items()} for phase, devices in past.accepted.items()
        },
        "members": {name: [m.examples, list(m.counts)] for name, m in members.items()},
        # An empty holder is left out: versions whose records had no counts of their own did not store the holder.
        "heard": {name: [mark for mark in marks if mark != ""] for name, marks in spool.last_heard().items()},
        "state": sorted(spool.server_state() or {}),
    }  # fmt: skip


def pack(folder: Path, target: Path) -> None:
    with tarfile.open(target, "w:xz") as archive:
        for name in ("coordinator", *DEVICES):
            archive.add(folder / name, name)


def unpack(source: Path, folder: Path) -> None:
    with tarfile.open(source) as archive:
        for member in (
            archive.getmembers()
        ):  # The archive is from this repository, and even so only files and folders are extracted.
            if member.isfile() or member.isdir():
                archive.extract(member, folder)
