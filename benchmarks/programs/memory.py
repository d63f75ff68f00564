"""The memory that a coordinator needs for a cohort of large updates, and the memory that an idle device needs.

The kernel counts both values: peak memory is VmHWM, and resident memory is VmRSS. Each value is measured in its own
process.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness.processes import MB, resident_megabytes
from benchmarks.programs.fleet import Clockwork, EndRun, broker, conduct, members
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.runtime.allocator import return_large_blocks

COHORTS = (2, 20)
# The model is one array of 44.7 MB. This is the hardest case for code that keeps one array at a time in memory.
LARGE = Plan("fedavg", 10, 1, size=32, network=Network("mlp", 3641), hyper={"epochs": 1, "lr": 1e-6})
SMALL = Plan("fedavg", 10, 1000, size=32, network=Network("cnn23"), hyper={"epochs": 1})


def measure(cohorts: Sequence[int] = COHORTS) -> dict[str, object]:
    model = sum(v.numel() * v.element_size() for v in LARGE.model().state_dict().values()) / MB
    peaks = {f"cohort_{n}": in_child("coordinator", n) for n in cohorts}
    torch_alone, device = in_child("torch"), in_child("device")
    return {
        "model_MB": round(model, 1),
        "coordinator_peak_MB": peaks,
        "allowed_MB_two_models_one_update_250": round(3 * model + 250, 1),
        "import_torch_MB": torch_alone,
        "idle_device_MB": device,
        "idle_device_over_import_torch_MB": round(device - torch_alone, 1),
    }


def in_child(what: str, *arguments: object) -> float:
    command = [sys.executable, "-m", "benchmarks.programs.memory", what, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return round(float(json.loads(done.stdout.strip().splitlines()[-1])), 1)


def coordinator(cohort: int) -> float:
    """Return the peak memory of this process while it conducts a round with device processes and large updates."""
    names = [f"device-{i}" for i in range(cohort)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "shape.json").write_text(json.dumps({"classes": LARGE.classes, "size": LARGE.size}))
        policy = Policy(quorum=cohort, cohort=cohort, settle_seconds=600.0, patience_seconds=1200.0)
        return_large_blocks()  # protofleet.coordinator.main makes the same call.
        with broker(folder) as running, members(folder, names, running.address, examples=2):
            conduct(folder, LARGE, policy, running.address, Clockwork())
    return resident_megabytes("VmHWM")


def device() -> float:
    """Return the memory of a device that has accepted its plan and loaded its model, and waits for a task."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "shape.json").write_text(json.dumps({"classes": SMALL.classes, "size": SMALL.size}))
        with broker(folder) as running, members(folder, ["a"], running.address, 500) as processes:
            observer = Joining(processes["a"].pid)
            try:
                conduct(folder, SMALL, Policy(quorum=2), running.address, observer)
            except EndRun:
                return observer.resident
    raise AssertionError("the device never joined")


class Joining(Clockwork):
    """An observer that ends the run when the device has joined.

    Otherwise the run would wait for a second device, which does not exist.
    """

    def __init__(self, process: int) -> None:
        super().__init__()
        self.process, self.resident = process, 0.0

    def happened(self, service, event, commands, now) -> None:  # type: ignore[no-untyped-def]
        time.sleep(2.0)
        self.resident = resident_megabytes("VmRSS", self.process)
        raise EndRun


def torch() -> float:
    importlib.import_module("torch")
    return resident_megabytes("VmRSS")


def torch_without_files() -> float:
    """Return the memory of `import torch`. Pages of files are not counted, because they depend on the page cache."""
    return torch() - resident_megabytes("RssFile")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    measures: dict[str, Callable[..., float]] = {
        "coordinator": coordinator,
        "device": device,
        "torch": torch,
        "torch-without-files": torch_without_files,
    }
    print(measures[what](*map(int, arguments)))
