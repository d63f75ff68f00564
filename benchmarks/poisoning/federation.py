"""A federation in this process: the halves of a method, and the coordinator's own step from answers to the next task.

The search for outliers (limits.outlier) is off, so each figure shows the rule alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from benchmarks.poisoning.attacks import ATTACKS, Seen, poisoned
from protofleet.coordinator.round.robust import Robust
from protofleet.coordinator.server.stepper import Stepper
from protofleet.coordinator.spool.spool import Accepted
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, Shards
from protofleet.edge_client.evaluate import evaluate
from protofleet.methods.contract.base import Ask, ClientHalf, Member, Payload
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.given import answer_of
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.state import snapshot

SIZE: Final = 16
SAMPLES: Final = 192  # Training samples of a device.
TEST_SAMPLES: Final = 500
LIAR: Final = "liar"
SIX: Final = ("optdigits", "mnist", "mfeat", "synth", "mnistm", "street")  # The liar has the first one.
MINORITY: Final = ("mnist", "mnist", "mnist", "mnist", "synth", "street")
SETTINGS: Final[Mapping[str, tuple[str, int, dict[str, Any]]]] = {
    "fedavg": ("cnn4", 5, {"epochs": 3, "batch": 32, "lr": 0.05}),
    "fedproto": ("cnn_bn", 5, {"epochs": 3, "batch": 32, "lr": 0.05}),
}


@dataclass(frozen=True)
class Cell:
    """One run to measure."""

    method: str
    rule: str
    attack: str
    domains: str  # "six" or "minority".
    seed: int

    @property
    def robust(self) -> Robust:
        if self.method == "fedavg":
            return Robust(weights=self.rule)  # type: ignore[arg-type]
        return Robust(prototypes=self.rule)  # type: ignore[arg-type]


def devices_of(cell: Cell, shards: Shards) -> dict[str, Shard]:
    domains = SIX if cell.domains == "six" else MINORITY
    found = {}
    for number, domain in enumerate(domains):
        repeated = domains[:number].count(domain)
        settings = DataSettings(
            source="digits", domain=domain, samples=SAMPLES, test_samples=TEST_SAMPLES, validation=0, size=SIZE,
            seed=cell.seed, parts=max(1, domains.count(domain)), part=repeated,
        )  # fmt: skip
        name = LIAR if cell.domains == "six" and number == 0 else f"{domain}-{repeated}"
        found[name] = shards.load(settings)
    return found


def plan_of(cell: Cell) -> Plan:
    network, rounds, settings = SETTINGS[cell.method]
    return Plan(cell.method, 10, rounds, cell.seed, SIZE, Network(network), settings)


def run(cell: Cell, shards: Shards) -> dict[str, float]:
    """Return the accuracy of each honest device in percent after the last round."""
    plan, data = plan_of(cell), devices_of(cell, shards)
    lies = ATTACKS[cell.attack]
    training = {
        name: replace(one.train, y=poisoned(one.train.y, one.classes))
        if name == LIAR and cell.attack == "label flip"
        else one.train
        for name, one in data.items()
    }
    clients = {name: plan.client_half(training[name], name) for name in sorted(data)}
    sent: dict[str, Payload] = {}
    stepper = Stepper(
        plan, 0.0, 0, lambda accepted: LazyPayload(to_numpy(sent[accepted.device])), robust=cell.robust
    )
    members = [Member(name, len(one.train.y)) for name, one in sorted(data.items())]
    for number in range(1, plan.rounds + 1):
        ask: Ask | None = stepper.begin(number, members)
        while ask:
            broadcast = snapshot(ask.payload)
            sent.update({name: answered(client, number, ask) for name, client in clients.items()})
            if LIAR in sent:
                others = [payload for name, payload in sent.items() if name != LIAR]
                sent[LIAR] = lies(Seen(number, broadcast, sent[LIAR], others))
            accepted = {m.device: Accepted(m.device, b"", b"", m.examples, {}) for m in members}
            ask = stepper.send(accepted)
    final = snapshot(stepper.server.payload())
    return {
        name: accuracy(clients[name], data[name], final, plan.variant.reports)
        for name in sorted(data)
        if name != LIAR
    }


def answered(client: ClientHalf, number: int, ask: Ask) -> Payload:
    client.begin(number)
    client.receive(snapshot(ask.payload))
    return snapshot(answer_of(client, Ask(ask.phase, snapshot(ask.payload), ask.wants)))


def accuracy(client: ClientHalf, data: Shard, final: Payload, view: str) -> float:
    client.receive(snapshot(final))
    return 100 * evaluate(client, data, view)[f"accuracy.test.{view}"]


def mean(accuracies: Mapping[str, float]) -> float:
    return fmean(accuracies.values())
