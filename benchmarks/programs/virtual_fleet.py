"""The cost of a virtual fleet: `protofleet simulate` with devices whose updates have 21 kB, run twice.

The second run must write the same bytes as the first one. CPU and memory are those of the whole command, with its
imports and its report.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXPERIMENT = """
name = "fleet"
rounds = {rounds}
classes = 10
method = {{ name = "fedavg", lr = 0.05, batch = 32, epochs = 1 }}
network = {{ name = "mlp", feature_size = 64 }}
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


def measure(devices: int, cohort: int, rounds: int = 20) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-virtual-") as place:
        folder = Path(place)
        text = EXPERIMENT.format(devices=devices, cohort=cohort, rounds=rounds)
        for name, content in (("fleet.toml", text), ("made_up.py", DATA), ("boards.toml", PROFILES)):
            (folder / name).write_text(content)
        first, second = (simulated(folder, f"runs-{i}") for i in (1, 2))
        for name in FILES:
            one, other = (folder / f"runs-{i}" / "fleet-virtual" / name for i in (1, 2))
            if not filecmp.cmp(one, other, shallow=False):
                raise RuntimeError(f"the two runs have written different files {name}")
    cpu = 1000 * min(first["cpu"], second["cpu"])
    return {
        "seconds": min(first["seconds"], second["seconds"]),
        "CPU an update": cpu / (cohort * rounds),
        "CPU an answer": cpu
        / (cohort * rounds + devices),  # With the last evaluation, in which all devices answer.
        "peak memory": max(first["memory"], second["memory"]),
    }


def simulated(folder: Path, runs: str) -> dict[str, float]:
    """Run the command, and return its seconds, its CPU seconds, and its peak memory in MB."""
    command = [sys.executable, "-m", "protofleet", "simulate", "fleet.toml", "--profiles", "boards.toml"]
    began = time.monotonic()
    with (folder / f"{runs}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--runs", runs], cwd=folder, stdout=log, stderr=log, env=dict(os.environ)
        )
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError((folder / f"{runs}.log").read_text()[-2000:])
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": time.monotonic() - began, "cpu": cpu, "memory": usage.ru_maxrss / 1000}
