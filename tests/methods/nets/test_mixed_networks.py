"""Tests of federations with several architectures, through the wire, for the methods that share no weights."""

import pytest
import torch

from protofleet.lab.contract.methods import require_numbers
from protofleet.lab.simulation.federation import Simulation
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.plan import Network, Plan, methods_for_mixed_networks
from protofleet.methods.nets import catalog as nets
from tests.support.few_methods import FEW_STEPS, of_each_shape
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import CLASSES, Shard, TensorSamples

SIZE, FEATURES = 16, 32
FLEET = {
    "device-0": Network("cnn4", FEATURES),
    "device-1": Network("resnet10", FEATURES),
    "device-2": Network("mobilenet_v2", FEATURES),
    "device-3": Network("googlenet", FEATURES),
}
HTFE8 = ("cnn4", "googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def part(n, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorSamples(torch.randn(n, 3, SIZE, SIZE, generator=g), torch.arange(n) % CLASSES)


def shard(i):
    return Shard(f"domain-{i}", CLASSES, part(9, i), part(3, 10 + i), part(6, 20 + i))


@pytest.mark.parametrize("method", of_each_shape(methods_for_mixed_networks()))
def test_four_architectures_take_part_in_one_federation(method, tmp_path):
    known = load(method).Hyper.__dataclass_fields__
    hyper = {name: value for name, value in {**FEW_STEPS, "batch": 9}.items() if name in known}
    plan = Plan(method, CLASSES, 2, 1, SIZE, FLEET["device-0"], hyper)
    policy = RunPolicy(rounds=2, quorum=4, patience_seconds=60.0, settle_seconds=0.0)
    shards = {device: shard(i) for i, device in enumerate(FLEET)}
    run = Simulation(
        plan, shards, policy, tmp_path, NetworkConditions(), 0,
        build=lambda device, p, data: p.client_half(data.train, device, FLEET[device]),
    ).run()  # fmt: skip
    require_numbers(run)
    assert len({sum(w.numel() for w in a.run.job.half.model.parameters()) for a in run.agents.values()}) == 4
    for agent in run.agents.values():
        assert (
            agent.state.last_round == 3
            and agent.view.receipts["accepted"] >= 2
            and len(agent.view.receipts) == 1
        )


def test_the_eight_networks_of_the_fedsa_paper_have_the_same_feature_size():
    with torch.device("meta"):
        for name in HTFE8:
            net = nets.build(name, classes=100, feature_size=512)
            assert net.embed(torch.zeros(2, 3, 32, 32)).shape == (2, 512), name
