"""Small things that tests of whole federations build: a tiny plan, tiny skewed data, a simulation of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.deploy.simulation.federation import Simulation
from protofleet.deploy.simulation.network import NetworkConditions
from protofleet.methods.contract.plan import Network, Plan
from tests.support.run_policy import RunPolicy

torch.set_num_threads(1)  # tests run side by side
CLASSES, SIZE = 3, 8
NAMES = ("cat", "dog", "owl")
# Everybody's answers make the bits: nobody is too slow, however busy the machine is.
POLICY = RunPolicy(
    rounds=3,
    quorum=3,
    cohort=3,
    patience_seconds=60.0,
    grace_seconds=5.0,
    settle_seconds=0.5,
    straggler_factor=0.0,
)
QUIET = {"epochs": 4, "batch": 8, "lr": 0.02, "momentum": 0.9}  # known to every local training
# Of those that have it. FCCL+ learns nothing where its temperature is as high as there are classes.
SMALL = {"server_epochs": 20, "init_steps": 20, "lambda1": 1.0, "lam": 1.0, "temperature": 1.0}
# FedPall's server moves its classifier so far at that rate that single rounds lose a class.
SLOWER = {"fedpall": {"lr": 0.01}}


@dataclass(frozen=True)
class Part:
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Shard:
    domain: str
    classes: int
    train: Part
    validation: Part
    test: Part
    names: tuple[str, ...] = NAMES


def part(n: int, seed: int, shift: float, classes=range(CLASSES)) -> Part:
    """Easy images: each class is a pattern, each domain adds a shift, each sample noise."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(7))
    y = torch.tensor(list(classes)).repeat(-(-n // len(classes)))[:n]
    return Part(patterns[y] + shift + 0.3 * torch.randn(n, 3, SIZE, SIZE, generator=g), y)


def shard(i: int, n: int = 48, classes=range(CLASSES)) -> Shard:
    shift = 0.1 * i
    train, validation, test = (part(k, 10 * i + j, shift, classes) for j, k in enumerate((n + 6 * i, 9, 30)))
    return Shard(f"domain-{i}", CLASSES, train, validation, test)


def plan(method: str, rounds: int = POLICY.rounds, plugin: str = "", **hyper) -> Plan:
    plugins = {"method": plugin} if plugin else {}
    known = Plan(method, CLASSES, rounds, plugins=plugins).load().Hyper.__dataclass_fields__
    wished = {**QUIET, **SMALL, **SLOWER.get(method, {}), **hyper}
    settings = {name: value for name, value in wished.items() if name in known}
    if "server_epochs" in settings and "server_epochs" not in hyper:  # few are enough here, and fewer stay so
        settings["server_epochs"] = min(settings["server_epochs"], known["server_epochs"].default)
    return Plan(method, CLASSES, rounds, 1, SIZE, Network("mlp"), settings, plugins=plugins)


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


def final_state(sim: Simulation) -> dict[str, torch.Tensor]:
    """All that the run has learned: the server half's state and every device's."""
    states = {"server": sim.service.run.server_runner.server.state()}
    states |= {name: agent.run.job.half.state() for name, agent in sim.agents.items() if agent.run.job}
    return {f"{who}/{key}": v.clone() for who, state in states.items() for key, v in state.items()}


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
