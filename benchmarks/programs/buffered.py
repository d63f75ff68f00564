"""Synchronous and buffered rounds with slow devices: python -m benchmarks.programs.buffered FILE [SEED ...].

Ten devices train on the bundled digits. Three of them take ten times as long for a task. The coordinator, the
devices and their messages are real. The clock is virtual (lab/simulation): a task takes 1 s or 10 s, and the training
itself takes no time. Each setting runs for as long as the synchronous run. The global model is measured after each
round on the test images of all devices. The figures go into FILE, which tools/pages/buffered.py reads.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.round.events import Advanced, Close, Command, Event
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.server.runner import Step
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.wire.messages import Update

DEVICES, SLOW = 10, 3
ROUNDS: Final = 10  # Rounds of the synchronous run, whose length decides how long all others run.
MOST_ROUNDS: Final = 1000
FAST_SECONDS, SLOW_SECONDS = 1.0, 10.0
HYPER: Final = {"epochs": 2, "batch": 32, "lr": 0.05, "momentum": 0.0}
PATIENT: Final[dict[str, Any]] = {"straggler_factor": 0.0, "gather": DEVICES, "settle_seconds": 0.0}
BUFFERED: Final[dict[str, Any]] = {**PATIENT, "mode": "buffered", "staleness": 30}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "synchronous": PATIENT,
    "straggler_factor": {**PATIENT, "straggler_factor": 2.5},
    "spares": {**PATIENT, "cohort": 7, "spares": 3},
    "buffered-4": {**BUFFERED, "buffer": 4},
    "buffered-7": {**BUFFERED, "buffer": 7},
}


@dataclass
class Curve:
    """An observer that measures the global model after each round of training."""

    x: torch.Tensor
    y: torch.Tensor
    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    slow_share: list[float] = field(default_factory=list)
    model: Any = None

    def happened(self, run: RunView, event: Event, commands: Sequence[Command], now: float) -> None:
        for one in commands:
            if isinstance(one, Close) and one.phase == "train":
                slow = sum(device in slow_devices() for device in one.devices)
                self.slow_share.append(slow / len(one.devices))
        if isinstance(event, Advanced) and event.phase is None and self.model is not None:
            self.seconds.append(round(now, 2))
            self.bytes.append(sum(run.traffic().wire.values()))
            self.accuracy.append(round(self._accuracy(), 4))

    def _accuracy(self) -> float:
        model = self.model.eval()
        with torch.no_grad():
            found = model(self.x).argmax(1) == self.y
        model.train()
        return float(found.float().mean())

    def answered(self, run: RunView, update: Update, now: float) -> None:
        """Do nothing."""

    def stepped(self, run: RunView, step: Step, now: float) -> None:
        """Do nothing."""


def slow_devices() -> set[str]:
    return {f"device-{i}" for i in range(DEVICES - SLOW, DEVICES)}


def shards_of(seed: int) -> dict[str, Shard]:
    shards = Shards()
    settings = (
        DataSettings(
            source="digits", domain="mnist", split="dirichlet", part=i, parts=DEVICES, beta=0.3, size=16,
            samples=120, test_samples=60, validation=0.0, seed=seed,
        )
        for i in range(DEVICES)
    )  # fmt: skip
    return {f"device-{i}": shards.load(one) for i, one in enumerate(settings)}


def measure(setting: str, seed: int, seconds: float) -> Curve:
    """Run one setting for these seconds of virtual time; 0 means the whole synchronous run."""
    shards = shards_of(seed)
    tests = [shard.test for shard in shards.values()]
    curve = Curve(torch.cat([test.x for test in tests]), torch.cat([test.y for test in tests]))
    rounds = MOST_ROUNDS if seconds else ROUNDS
    plan = Plan("fedavg", 10, rounds, seed, 16, Network("mlp", 64), dict(HYPER)).with_codec("off")
    with tempfile.TemporaryDirectory() as folder:
        run = Simulation(plan, shards, Policy(**SETTINGS[setting]), Path(folder), observers=[curve])
        curve.model = run.service.run.server_runner.server.model
        for device in shards:
            run.workers[device].seconds = SLOW_SECONDS if device in slow_devices() else FAST_SECONDS
        run.run(lambda: len(curve.seconds) == rounds or (seconds > 0 and run.clock.now > seconds))
    return curve


def main(path: Path, seeds: Sequence[int]) -> None:
    torch.set_num_threads(1)
    found = json.loads(path.read_text()) if path.exists() else {}
    for seed in seeds:
        seconds = 0.0
        for setting in SETTINGS:
            known = found.setdefault(setting, {})
            if str(seed) not in known:
                curve = measure(setting, seed, seconds)
                known[str(seed)] = {
                    "seconds": curve.seconds, "bytes": curve.bytes, "accuracy": curve.accuracy,
                    "slow_share": round(sum(curve.slow_share) / len(curve.slow_share), 4),
                }  # fmt: skip
                path.write_text(json.dumps(found, indent=1, sort_keys=True))
            seconds = seconds or known[str(seed)]["seconds"][-1]
            last = known[str(seed)]
            print(seed, setting, len(last["seconds"]), last["seconds"][-1], last["accuracy"][-1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]] or [1, 2, 3, 4, 5])
