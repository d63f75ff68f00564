"""Our side of the comparison with Flower (benchmarks/measures/flower.py): rounds, socket bytes, idle memory.

`python -m benchmarks.programs.counted FOLDER [DEVICES ROUNDS]` runs in its own process. The memory of this
process is then the memory of a coordinator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.processes import CountingProxy, Family
from benchmarks.programs.fleet import Clockwork, broker, conduct, members
from benchmarks.programs.rounds import DEVICES, MODEL, ROUNDS, one, ratio
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.events import Command, Event, Joined
from protofleet.coordinator.round.policy import Policy
from protofleet.protocol.transport.address import BrokerAddress

EXAMPLES = 31


def payload(devices: int) -> int:
    """Return the bytes of the arrays of a round: for each device, one model down and one model up."""
    model: int = sum(w.numel() * w.element_size() for w in MODEL.model().state_dict().values())
    return 2 * devices * model


def measured(folder: Path, devices: int = DEVICES, rounds: int = ROUNDS) -> dict[str, object]:
    observer, plan = Present(Family(folder), devices), replace(MODEL, rounds=rounds)
    policy = Policy(quorum=devices, cohort=devices, settle_seconds=60.0)
    (folder / "shape.json").write_text(json.dumps({"classes": MODEL.classes, "size": MODEL.size}))
    names = [f"device-{i}" for i in range(devices)]
    with broker(folder) as running, CountingProxy(int(running.address.port or 0)) as proxy:
        observer.proxy = proxy
        with members(folder, names, BrokerAddress(port=proxy.port), EXAMPLES):
            conduct(folder, plan, policy, running.address, observer)
            counted = proxy.bytes - observer.before
    return {
        "rounds": rounds,
        **one(plan, EXAMPLES, devices),
        "bytes_over_payload": ratio(counted, payload(devices) * rounds),
        "idle": observer.idle,
    }


class Present(Clockwork):
    """An observer that measures the idle memory and the bytes so far when the last device has joined."""

    def __init__(self, family: Family, devices: int) -> None:
        super().__init__()
        self.family, self.devices, self.joined, self.before = family, devices, 0, 0
        self.idle: dict[str, float] = {}
        self.proxy: CountingProxy | None = None

    def happened(self, service: RunView, event: Event, commands: Sequence[Command], now: float) -> None:
        self.joined += isinstance(event, Joined)
        if self.proxy is not None and self.joined == self.devices and not self.idle:
            self.idle = self.family.settled_memory()
            self.before = self.proxy.bytes


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
