"""The cost of a virtual fleet: `protofleet simulate` with one process, and with a process that trains for each core.

The second run must write the same bytes as the first one. CPU and memory are those of the whole command, with its
imports, its report and its worker processes.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.processes import held

LOOK_SECONDS = 1.0  # Time between two looks at the memory.
EXPERIMENT = """
name = "fleet"
rounds = {rounds}
classes = 10
method = {{ name = "fedavg", lr = 0.05, batch = 32, epochs = 1 }}
network = {{ name = "mlp", feature_size = {width} }}
[data]
file = "made_up.py"
shape = [64]
[devices]
count = {devices}
[policy]
quorum = {cohort}
cohort = {cohort}
settle_seconds = 0
evaluate_every = 0
"""
DATA = """
import numpy as np
from protofleet import Data

def load(request):
    rng = np.random.default_rng(request.part)
    def pair(number):
        y = rng.integers(0, 10, number)
        return (rng.normal(size=(number, 64)) + y[:, None] / 5).astype(np.float32), y
    return Data(pair(64), pair(32), 10)

DATA = load
"""
PROFILES = """
[boards.pi5]
share = 0.5
step_seconds = 0.02
watts = 6.0
[boards.pi3]
share = 0.5
step_seconds = 0.12
watts = 3.0
[lines.fibre]
share = 0.4
up = 100
down = 300
delay = 0.005
[lines.lte]
share = 0.6
up = 8
down = 30
delay = 0.05
loss = 0.01
watts = 1.5
price = 0.8
"""
FILES = ("rounds.jsonl", "summary.json", "report.html")


def measure(devices: int, cohort: int, rounds: int = 20, width: int = 64) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-virtual-") as place:
        folder = Path(place)
        text = EXPERIMENT.format(devices=devices, cohort=cohort, rounds=rounds, width=width)
        for name, content in (("fleet.toml", text), ("made_up.py", DATA), ("boards.toml", PROFILES)):
            (folder / name).write_text(content)
        alone = simulated(folder, "runs-1", "--workers", "1")
        usual = simulated(folder, "runs-2")
        for name in FILES:
            one, other = (folder / f"runs-{i}" / "fleet-virtual" / name for i in (1, 2))
            if not filecmp.cmp(one, other, shallow=False):
                raise RuntimeError(f"the two runs have written different files {name}")
    updates = cohort * rounds
    return {
        "seconds": usual["seconds"],
        "seconds, one process": alone["seconds"],
        "CPU an update": 1000 * usual["cpu"] / updates,
        "CPU an update, one process": 1000 * alone["cpu"] / updates,
        # With the last evaluation, in which all devices answer.
        "CPU an answer": 1000 * usual["cpu"] / (updates + devices),
        "peak memory": usual["memory"],
        "peak memory, one process": alone["memory"],
    }


def simulated(folder: Path, runs: str, *options: str) -> dict[str, float]:
    """Run the command, and return its seconds, its CPU seconds, and the peak of the memory of its processes in MB."""
    command = [sys.executable, "-m", "protofleet", "simulate", "fleet.toml", "--profiles", "boards.toml"]
    began, memory = time.monotonic(), 0.0
    with (folder / f"{runs}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--runs", runs, *options], cwd=folder, stdout=log, stderr=log, env=dict(os.environ)
        )
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            memory = max(memory, held(with_children(process.pid))["pss_MB"])
            time.sleep(LOOK_SECONDS)
    _, status, usage = ended
    if status:
        raise RuntimeError((folder / f"{runs}.log").read_text()[-2000:])
    return {"seconds": time.monotonic() - began, "cpu": usage.ru_utime + usage.ru_stime, "memory": memory}


def with_children(pid: int) -> list[int]:
    """Return the process and its children, if it still runs."""
    with contextlib.suppress(OSError):
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return [pid]
