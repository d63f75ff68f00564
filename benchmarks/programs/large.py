"""Large models: the bytes that a coordinator writes to the disk for updates, and the peak memory of a device."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.harness.processes import MB, counters, resident_megabytes
from benchmarks.programs.fleet import Clockwork, broker, conduct, members
from benchmarks.programs.memory import in_child
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.policy import Policy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.link.meter import UP
from protofleet.protocol.wire.messages import Update
from protofleet.runtime.allocator import return_large_blocks

INPUTS = 3 * 32 * 32 + 1  # The number of values in an image, plus one for the bias.


def plan_of(megabytes: float, rounds: int, steps: int) -> Plan:
    """Return a plan in which one array has nearly all weights of the model.

    A device has so few samples that an epoch is one step.
    """
    network = Network("mlp", round(megabytes * MB / 4 / INPUTS))
    return Plan("fedavg", 10, rounds, size=32, network=network, hyper={"epochs": steps, "lr": 1e-6})


class Peaks(Clockwork):
    """An observer that notes the peak memory of a process at every update."""

    def __init__(self) -> None:
        super().__init__()
        self.process, self.peak, self.files = 0, 0.0, 0.0

    def answered(self, run: RunView, update: Update, now: float) -> None:
        super().answered(run, update, now)
        self.peak = max(self.peak, resident_megabytes("VmHWM", self.process))
        self.files = resident_megabytes("RssFile", self.process)


def measure(megabytes: float = 45.0, devices: int = 5, rounds: int = 4, steps: int = 1) -> dict[str, float]:
    """Measure peaks of memory, and the ratio of bytes on the disk to bytes of updates.

    This process is the coordinator of the run.
    """
    plan, names, peaks = plan_of(megabytes, rounds, steps), [f"device-{i}" for i in range(devices)], Peaks()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "shape.json").write_text(json.dumps({"classes": plan.classes, "size": plan.size}))
        policy = Policy(quorum=devices, cohort=devices, settle_seconds=600.0, patience_seconds=1200.0)
        return_large_blocks()
        with broker(folder) as running, members(folder, names, running.address, examples=2) as processes:
            peaks.process = processes[names[0]].pid
            service = conduct(folder, plan, policy, running.address, peaks)
            # The counter is read before the devices end, because the kernel adds the bytes of an ended child to
            # its parent.
            made_dirty = counters(os.getpid()).written
    came = sum(size for (way, _), size in service.run.link.meter.payload.items() if way == UP)
    model = sum(v.numel() * v.element_size() for v in plan.model().state_dict().values()) / MB
    if (
        came < 0.99 * devices * rounds * model * MB
    ):  # Updates may be 1% smaller than the model, because they may lack small arrays such as counters.
        raise RuntimeError(
            f"only {came / MB:.0f} MB of updates arrived, but {rounds} rounds of {devices} devices with a model of "
            f"{model:.0f} MB give more"
        )
    return {
        "written over what came": made_dirty / came,
        "device's peak": peaks.peak,
        "device's peak over import torch, in models": (
            peaks.peak - peaks.files - in_child("torch-without-files")
        )
        / model,
        "coordinator's peak": resident_megabytes("VmHWM"),
        "seconds a round": statistics.median(
            seconds for phase, seconds, _ in peaks.phases if phase == "train"
        ),
    }
