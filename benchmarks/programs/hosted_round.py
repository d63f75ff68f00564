"""A round of ten devices in shared processes, with all its costs, and a plain PyTorch loop in one process.

The loop (benchmarks/programs/bare.py) has the same network, samples and steps, and averages the weights. The loop is
measured before and after the federation, so that a change of the machine's load does not favour the loop or the
federation. The cost of the federation includes everything that a round needs: devices, coordinator and broker, sealed
messages and all writes to the disk.
"""

from __future__ import annotations

import os
import statistics

from benchmarks.programs import bare, hosted
from benchmarks.programs.round_cost import EXAMPLES
from benchmarks.programs.rounds import DEVICES

ROUNDS = 10


def measure(
    epochs: int = 1, processes: int = 1, rounds: int = ROUNDS, devices: int = DEVICES
) -> dict[str, float]:
    """Return the cost of a round. If `processes` is 0, there is one process for each core."""
    before = bare.measure(devices, EXAMPLES, epochs=epochs)
    found = hosted.measure(devices, processes or os.cpu_count() or 1, rounds, epochs)
    after = bare.measure(devices, EXAMPLES, epochs=epochs)
    loop = {name: statistics.mean((before[name], after[name])) for name in before}
    cpu = found["CPU a device's round"] * devices / 1000
    return {
        "cpu over bare": cpu / loop["bare cpu"],
        "seconds over bare": found["seconds a round"] / loop["bare seconds"],
        "cpu": cpu,
        "seconds": found["seconds a round"],
        "bare cpu a device": 1000 * loop["bare cpu"] / devices,
        "trainer over bare": loop["trainer over bare"],
    }
