"""Measure the CPU of a whole round, for all processes together.

There are ten device processes, a broker process and a coordinator in this process. The network has 53,002
parameters, and each device trains one epoch on 600 samples. The CPU is counted from the end of the first training
phase to the end of the last training phase. The same training in a plain PyTorch loop in one process is measured
for comparison (benchmarks/programs/bare.py).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.harness.processes import cpu_ns
from benchmarks.programs import bare
from benchmarks.programs.fleet import Clockwork, broker, conduct, members
from benchmarks.programs.rounds import DEVICES, MODEL
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.wire.messages import Update

EXAMPLES = 600


class CpuClock(Clockwork):
    """An observer that notes the time and the CPU of some processes at the end of each training phase.

    A training phase ends with its last update.
    """

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[int] = []
        self.marks: list[tuple[float, float]] = []

    def answered(self, run: RunView, update: Update, now: float) -> None:
        before = len(self.phases)
        super().answered(run, update, now)
        if len(self.phases) > before and update.phase == "train":
            self.marks.append((sum(map(cpu_ns, self.processes)) / 1e9, time.monotonic()))


def measure() -> dict[str, float]:
    alone = bare.measure(DEVICES, EXAMPLES)
    names, clock = [f"device-{i}" for i in range(DEVICES)], CpuClock()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "shape.json").write_text(json.dumps({"classes": MODEL.classes, "size": MODEL.size}))
        policy = Policy(quorum=DEVICES, cohort=DEVICES, settle_seconds=60.0)
        with broker(folder) as running, members(folder, names, running.address, EXAMPLES) as processes:
            clock.processes = [
                os.getpid(),
                *(p.pid for p in processes.values()),
                *of_group(running.process_group),
            ]
            conduct(folder, MODEL, policy, running.address, clock)
    (first, began), (last, ended), rounds = clock.marks[0], clock.marks[-1], len(clock.marks) - 1
    if rounds != MODEL.rounds - 1:
        raise RuntimeError(f"only {rounds + 1} of {MODEL.rounds} training phases have ended")
    cpu, seconds = (last - first) / rounds, (ended - began) / rounds
    return {
        "cpu": cpu, "seconds": seconds, "cpu over bare": cpu / alone["bare cpu"],
        "seconds over bare": seconds / alone["bare seconds"], "trainer over bare": alone["trainer over bare"],
    }  # fmt: skip


def of_group(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # The process has just ended.
            continue
        if int(fields[2]) == group:
            found.append(int(stat.parent.name))
    return found
