"""Small parts for tests of whole federations: a tiny plan, tiny skewed data, and a simulation that uses both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.edge_client.data.shard import Shard, TensorSamples
from protofleet.lab.contract.worlds import (
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
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from tests.support.few_methods import FEW_STEPS

__all__ = [
    "CLASSES", "NAMES", "POLICY", "QUIET", "SHAPE", "SIZE", "Shard", "TensorSamples", "assert_same", "final_state",
    "in_blocks", "once_each", "part", "plan", "replace_coordinator", "replace_coordinator_in_the_repeated_round",
    "restart_in_each_round", "shard", "simulation",
]  # fmt: skip
torch.set_num_threads(1)  # Several test processes run at the same time.


def simulation(
    folder: Path, method: str, conditions: NetworkConditions | None = None, seed: int = 0, policy: RunPolicy = POLICY,
    hyper: Mapping[str, object] | None = None, shards: Mapping[str, Shard] | None = None, plugin: str = "", **more,
) -> Simulation:  # fmt: skip
    """Return a simulation of three devices, or more, that run a tiny plan of this method.

    `shards` has the data of further devices, and of devices whose data must differ from the common shards.
    Without `hyper` the devices take few steps. With `hyper={}` they take so many that the run learns.
    """
    shards = {f"device-{i}": shard(i) for i in range(3)} | dict(shards or {})
    made = plan(method, policy.rounds, plugin, **(FEW_STEPS if hyper is None else hyper))
    return Simulation(made, shards, policy, folder, conditions or NetworkConditions(), seed, **more)


def in_blocks(run: Simulation, monkeypatch) -> None:
    """Lower the inline limit to 64 bytes, so that honest answers of the tiny network also travel as objects."""
    monkeypatch.setattr("protofleet.protocol.link.run_part.INLINE", 64)
    for agent in run.agents.values():
        agent.link.inline = 64
        agent.link.adapt = lambda *limits: None


def restart_in_each_round(run: Simulation) -> None:
    """Restart a device and the coordinator in each round, after the first update has arrived."""
    for number in range(1, run.plan.rounds + 1):
        run.run(
            until=lambda n=number: run.service.run.machine.round >= n and run.service.run.machine.answered
        )
        run.kill("device-1")
        run.boot_device("device-1")
        run.kill("coordinator")
        run.boot_coordinator()


def replace_coordinator(run: Simulation, file: RoundsFile) -> None:
    """Kill the coordinator and start another one that writes into the same rounds file."""
    run.kill("coordinator")
    run.boot_coordinator()
    run.service.run.observers.clear()
    keep_journal(run.service.run, [file])


def replace_coordinator_in_the_repeated_round(run: Simulation, file: RoundsFile) -> None:
    """Run until the spool has put an answer aside, then replace the coordinator."""
    run.run(until=lambda: bool(run.service.run.spool.recover() and run.service.run.spool.recover()[0].aside))
    replace_coordinator(run, file)


def assert_same(a: Simulation, b: Simulation) -> None:
    one, other = final_state(a), final_state(b)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


def once_each(make: Callable[[str], Simulation]) -> Callable[[str], Simulation]:
    """Return a function that makes the run of a method at its first call and returns the same run at later calls."""
    known: dict[str, Simulation] = {}

    def of(method: str) -> Simulation:
        if method not in known:
            known[method] = make(method)
        return known[method]

    return of
