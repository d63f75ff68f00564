"""A smoke test inside an image, on any processor: it imports all modules, sends hellos, and trains a model.

It imports no tests, because an image has none. The federation is the real one; its network is simulated, and
its data are made-up patterns.
"""

import importlib
import pkgutil
import platform
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from protofleet.coordinator.round.policy import Policy
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network, Plan

warnings.simplefilter("ignore")
torch.set_num_threads(1)


@dataclass(frozen=True)
class Part:
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Shard:
    domain: str
    train: Part
    validation: Part
    test: Part
    classes: int = 3
    names: tuple[str, ...] = ()


def part(n: int, seed: int) -> Part:
    patterns = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(7))
    y = torch.arange(n) % 3
    return Part(patterns[y] + 0.1 * torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed)), y)


def import_everything() -> int:
    # The modules in `apart` run in other places.
    found, apart = 0, ("__main__", "brokers.embedded", "install_on_vendor_torch", "audit")
    for package in (
        "protocol",
        "runtime",
        "methods",
        "edge_client",
        "coordinator",
        "federation",
        "lab",
        "deploy",
        "cli",
    ):
        package = f"protofleet.{package}"
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith(apart):
                importlib.import_module(module.name)
                found += 1
    return found


def learn(folder: Path) -> float:
    plan = Plan("fedavg", 3, 2, 1, 8, Network("mlp"), {"epochs": 2, "batch": 8, "lr": 0.05})
    shards = {f"d{i}": Shard(f"d{i}", part(24, i), part(6, i + 10), part(30, i + 20)) for i in (1, 2)}
    run = Simulation(plan, shards, Policy(quorum=2, settle_seconds=0.1), folder).run()
    assert run.service.finished and all(agent.view.coordinator_answered for agent in run.agents.values()), (
        "no hello was answered"
    )
    model, test = run.service.run.server_runner.server.model, shards["d1"].test
    with torch.no_grad():
        return float((model(test.x).argmax(1) == test.y).float().mean())


if __name__ == "__main__":
    modules = import_everything()
    with tempfile.TemporaryDirectory() as folder:
        accuracy = learn(Path(folder))
    sys.stdout.write(
        f"{platform.machine()} torch {torch.__version__}: {modules} modules, accuracy {accuracy:.2f}\n"
    )
