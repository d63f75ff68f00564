"""Client halves of every method after one round of training, made by a plan with a small image network."""

from __future__ import annotations

import functools

import torch

from protofleet.methods import ghofl
from protofleet.methods.contract.base import ClientHalf
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.state import snapshot
from protofleet.methods.served.card import Card, sha256_of_tensors
from protofleet.methods.served.rebuild import described
from protofleet.methods.served.scaling import input_of
from protofleet.methods.served.served import Served, served, ways_of
from protofleet.protocol.settings.reader import encode
from tests.methods.test_papers import HYPERS
from tests.methods.tiny import Shard, play

SIDE, CLASSES = 8, 3
NAMES = {
    **{module.__name__.rpartition(".")[2]: hyper for module, hyper in HYPERS.items()},
    # Other settings of a method, with another rule; the method's name is before the colon.
    "ghofl:nb": ghofl.Hyper(head="nb", least_samples=1),
    "ghofl:qda": ghofl.Hyper(head="qda", least_samples=1),
}


def plan_of(method: str, network: Network | None = None, size: int = SIDE, classes: int = CLASSES) -> Plan:
    usual = Network("cnn_bn" if method == "fedbn" else "mlp", feature_size=8)
    return Plan(
        method.partition(":")[0], classes, rounds=1, size=size, network=network or usual,
        hyper=encode(NAMES[method]),
    )  # fmt: skip


def images(seed: int, plan: Plan, of: int = 12) -> Shard:
    x = input_of(plan).drawn(of, seed)
    return Shard((2 * x - 255) / 255, torch.arange(of) % (plan.classes if seed else plan.classes - 1))


def learned(plan: Plan) -> dict[str, ClientHalf]:
    """Return two client halves after one round, ready for the last evaluation; one device lacks a class."""
    server = plan.server_half()
    halves = {
        name: plan.client_half(images(seed, plan), name) for seed, name in enumerate(("device-0", "device-1"))
    }
    play(server, halves, 1)
    for half in halves.values():
        half.receive(snapshot(server.payload()))
        half.begin(2)
        half.after_last_round()
        half.model.eval()
    return halves


@functools.cache
def device_0(method: str) -> ClientHalf:
    return learned(plan_of(method))["device-0"]


def each_way() -> list[tuple[str, str]]:
    return [(method, way) for method in sorted(NAMES) for way in ways_of(device_0(method))]


def card_of(plan: Plan, model: Served, way: str) -> Card:
    return Card(
        method=plan.method, classes=tuple(map(str, range(plan.classes))), input=input_of(plan), network=plan.network,
        rule=described(model.rule), plan=encode(plan), tensors=sha256_of_tensors(model.state_dict()), way=way,
    )  # fmt: skip


def model_of(method: str, way: str) -> tuple[Served, Card]:
    plan = plan_of(method)
    model = served(device_0(method), input_of(plan), way)
    return model, card_of(plan, model, way)
