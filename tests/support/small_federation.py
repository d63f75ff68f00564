"""Small things that tests of whole federations build: a tiny plan, tiny skewed data, a simulation of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.deploy.contract.worlds import (
    CLASSES,
    NAMES,
    POLICY,
    QUIET,
    SHAPE,
    SIZE,
    RunPolicy,
    final_state,
    part,
    plan,
    shard,
)  # fmt: skip
from protofleet.deploy.simulation.federation import Simulation
from protofleet.deploy.simulation.network import NetworkConditions
from protofleet.edge_client.data.shard import Shard, TensorSamples

__all__ = [
    "CLASSES", "NAMES", "POLICY", "QUIET", "SHAPE", "SIZE", "Shard", "TensorSamples", "assert_same", "final_state",
    "in_blocks", "once_each", "part", "plan", "replace_coordinator", "replace_coordinator_in_the_repeated_round",
    "shard", "simulation",
]  # fmt: skip
torch.set_num_threads(1)  # tests run side by side


def simulation(
    folder: Path, method: str, conditions: NetworkConditions | None = None, seed: int = 0, policy: RunPolicy = POLICY,
    hyper: Mapping[str, object] | None = None, shards: Mapping[str, Shard] | None = None, plugin: str = "", **more,
) -> Simulation:  # fmt: skip
    """`shards`: of devices that hold other data than the common ones."""
    shards = {f"device-{i}": shard(i) for i in range(3)} | dict(shards or {})
    made = plan(method, policy.rounds, plugin, **(hyper or {}))
    return Simulation(made, shards, policy, folder, conditions or NetworkConditions(), seed, **more)


def in_blocks(run: Simulation, monkeypatch) -> None:
    """Honest answers of the tiny network travel as objects too."""
    monkeypatch.setattr("protofleet.protocol.link.base.INLINE", 64)
    for agent in run.agents.values():
        agent.link.inline = 64
        agent.link.adapt = lambda *limits: None


def replace_coordinator(run: Simulation, file: RoundsFile) -> None:
    """It dies, and the next one writes into the same file."""
    run.kill("coordinator")
    run.boot_coordinator()
    run.service.run.observers.clear()
    keep_journal(run.service.run, [file])


def replace_coordinator_in_the_repeated_round(run: Simulation, file: RoundsFile) -> None:
    """As soon as an answer has been put aside."""
    run.run(until=lambda: bool(run.service.run.spool.recover() and run.service.run.spool.recover()[0].aside))
    replace_coordinator(run, file)


def assert_same(a: Simulation, b: Simulation) -> None:
    one, other = final_state(a), final_state(b)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


def once_each(make: Callable[[str], Simulation]) -> Callable[[str], Simulation]:
    """A run by its method, made when it is first asked for: what others are compared with."""
    known: dict[str, Simulation] = {}

    def of(method: str) -> Simulation:
        if method not in known:
            known[method] = make(method)
        return known[method]

    return of
