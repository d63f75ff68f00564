"""Make the small federations that the checks run: a tiny plan and tiny, unequally distributed data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from protofleet.coordinator.round.events import NOBODY_LEFT
from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.data.shard import Shard, TensorSamples
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.settings.input_shape import InputShape
from protofleet.protocol.settings.named_codecs import CodecName

CLASSES: Final = 3
SIZE: Final = 8
SHAPE: Final = (3, SIZE, SIZE)
NAMES: Final = ("cat", "dog", "owl")


@dataclass(frozen=True)
class RunPolicy(Policy):
    """A policy that also has the number of rounds of the run."""

    rounds: int = 2


# The bits of the result depend on the updates of all devices. Therefore this policy waits for every device, even on a
# busy machine.
POLICY: Final = RunPolicy(
    rounds=3,
    quorum=3,
    cohort=3,
    patience_seconds=60.0,
    grace_seconds=5.0,
    settle_seconds=0.5,
    straggler_factor=0.0,
)
# Settings of the local training. Every method has these settings.
QUIET: Final = {"epochs": 4, "batch": 8, "lr": 0.02, "momentum": 0.9}
# Settings that only some methods have. The temperature is for FCCL+, which does not learn at a high temperature.
SMALL: Final = {"server_epochs": 20, "init_steps": 20, "lambda1": 1.0, "lam": 1.0, "temperature": 1.0}
# At the usual learning rate, FedPall's server changes its classifier so much in a single round that the classifier
# may no longer recognize a class.
SLOWER: Final[Mapping[str, Mapping[str, float]]] = {"fedpall": {"lr": 0.01}}


class ContractError(Exception):
    """The error for a requirement of the contract that is not met, with a message for the author."""


def require(holds: bool, words: str) -> None:
    if not holds:
        raise ContractError(words)


@dataclass(frozen=True)
class Subject:
    """A method and a network. A check tests one of these two.

    Every device allows the plug-ins of the method and of the network.
    """

    method: str
    plugin: str = ""  # The SHA-256 of the method's plug-in; "" for a built-in method.
    network: Network = field(default_factory=lambda: Network("mlp"))
    allowed: PlugIns = field(default_factory=PlugIns)
    shards: Mapping[str, Any] | None = (
        None  # The data of each device; None for generated pictures that are easy to classify.
    )
    hyper: Mapping[str, object] = field(default_factory=dict)

    def plan(self, rounds: int = POLICY.rounds) -> Plan:
        return plan(self.method, rounds, self.plugin, self.network, self.shards, **self.hyper)

    def simulation(
        self, folder: Path, conditions: NetworkConditions | None = None, seed: int = 0, policy: RunPolicy = POLICY,
        shards: Mapping[str, Any] | None = None, codec: CodecName = "off", **more: Any,
    ) -> Simulation:  # fmt: skip
        held = shards or self.shards or {f"device-{i}": shard(i) for i in range(3)}
        made = self.plan(policy.rounds).with_codec(codec)
        return Simulation(
            made, held, policy, folder, conditions or NetworkConditions(), seed, plugins=self.allowed, **more
        )


def part(
    n: int, seed: int, shift: float, classes: Sequence[int] = range(CLASSES), shape: Sequence[int] = SHAPE
) -> TensorSamples:
    """Make easy samples: each class is a pattern, each domain adds a shift, and each sample adds noise."""
    g = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(7))
    y = torch.tensor(list(classes)).repeat(-(-n // len(classes)))[:n]
    return TensorSamples(patterns[y] + shift + 0.3 * torch.randn(n, *shape, generator=g), y)


def shard(
    i: int, n: int = 48, classes: Sequence[int] = range(CLASSES), shape: Sequence[int] = SHAPE
) -> Shard:
    numbers = enumerate((n + 6 * i, 9, 30))
    train, validation, test = (part(k, 10 * i + j, 0.1 * i, classes, shape) for j, k in numbers)
    return Shard(f"domain-{i}", CLASSES, train, validation, test, NAMES)


def plan(
    method: str, rounds: int = POLICY.rounds, plugin: str = "", network: Network | None = None,
    shards: Mapping[str, Any] | None = None, **hyper: object,
) -> Plan:  # fmt: skip
    plugins = {"method": plugin} if plugin else {}
    first = next(iter(shards.values())) if shards else None
    classes = first.classes if first else CLASSES
    shape = InputShape(tuple(first.train.x.shape[1:]) if first else SHAPE)
    known = {f.name: f for f in fields(Plan(method, classes, rounds, plugins=plugins).load().Hyper)}
    wished = {**QUIET, **SMALL, **SLOWER.get(method, {}), **hyper}
    settings = {name: value for name, value in wished.items() if name in known}
    # Few epochs are enough here. If the default is even smaller, the default is used.
    if "server_epochs" in settings and "server_epochs" not in hyper:
        usual: Any = known["server_epochs"].default
        settings["server_epochs"] = min(20, usual)
    return Plan(
        method, classes, rounds, 1, network=network or Network("mlp"), hyper=settings, plugins=plugins,
        **shape.settings(),
    )  # fmt: skip


def final_state(run: Simulation) -> dict[str, Tensor]:
    """Return everything that the run has learned: the state of the server half and of every device."""
    states = {"server": run.service.run.server_runner.server.state()}
    for name, agent in run.agents.items():
        if agent.run.job:
            states[name] = agent.run.job.half.state()  # type: ignore[attr-defined]  # a simulation has local jobs
    return {f"{who}/{key}": v.clone() for who, state in states.items() for key, v in state.items()}


def training_rounds(run: Simulation) -> int:
    """Return the number of rounds of training of a finished run.

    A run has fewer rounds than its plan if the server half keeps the answers of all devices.
    """
    end = run.service.run.machine.ended_early
    return end.round if end is not None and end.by == NOBODY_LEFT else run.plan.rounds


def require_finished(run: Simulation, otherwise: str) -> None:
    why = run.service.run.diverged
    require(run.service.finished and not why, f"{otherwise}{why and f': {why}'}")


def require_same(a: Simulation, b: Simulation) -> None:
    one, other = final_state(a), final_state(b)
    require(
        one.keys() == other.keys(), f"one run has {sorted(one)[:4]} ..., the other {sorted(other)[:4]} ..."
    )
    for key, value in one.items():
        require(torch.equal(value, other[key]), f"{key} has other bits than in the unbroken run")


def policy_with(**changes: Any) -> RunPolicy:
    return RunPolicy(**{**{f.name: getattr(POLICY, f.name) for f in fields(POLICY)}, **changes})
