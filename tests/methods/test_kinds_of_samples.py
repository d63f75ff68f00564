"""Tests that every method learns from vectors, series and images that are not square, without knowing their kind."""

import math

import pytest
import torch

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.edge_client.limits import DeviceLimits, HalfBuilder
from protofleet.lab.contract.worlds import QUIET, SMALL
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.public import PublicSet
from protofleet.protocol.settings.reader import SettingsError
from tests.methods.tiny import CLASSES, play
from tests.support.few_methods import of_each_shape

KINDS = {"vectors": ((12,), "mlp"), "series": ((4, 16), "cnn1d"), "images": ((2, 9, 16), "cnn_bn")}
ROUNDS = 2


def samples(shape, seed, count=24):
    """Return samples that are the pattern of their class plus noise."""
    patterns = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(7))
    y = torch.arange(count) % CLASSES
    noise = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    return TensorSamples(patterns[y] + 0.3 * noise, y)


def plan_of(method, shape, network):
    known = Plan(method, CLASSES, ROUNDS).load().Hyper.__dataclass_fields__
    hyper = {name: value for name, value in {**QUIET, **SMALL, "epochs": 1}.items() if name in known}
    if "server_epochs" in known:
        hyper["server_epochs"] = 2
    public = PublicSet(samples=16, batch=8) if Plan(method, CLASSES, 1).load().public else None
    return Plan(method, CLASSES, ROUNDS, 1, network=Network(network), hyper=hyper, shape=shape, public=public)


@pytest.mark.parametrize("method", of_each_shape(names()))
@pytest.mark.parametrize("kind", KINDS)
def test_each_method_completes_its_rounds_with_each_kind_of_sample(kind, method):
    shape, network = KINDS[kind]
    plan = plan_of(method, shape, network)
    parts = {f"device-{i}": samples(shape, i) for i in range(2)}
    clients = {
        name: HalfBuilder(DeviceLimits(), part, name, None, torch.device("cpu"), part).build(plan)
        for name, part in parts.items()
    }
    server = plan.server_half()
    before = {name: value.clone() for name, value in clients["device-0"].state().items()}
    sent = [play(server, clients, number) for number in range(1, ROUNDS + 1)]
    assert all(answers for phases in sent for answers in phases)
    after = clients["device-0"].state()
    assert all(bool(torch.isfinite(value).all()) for value in after.values() if value.is_floating_point())
    assert (
        not before
        or before.keys() != after.keys()
        or any(not torch.equal(after[n], before[n]) for n in before)
    )
    x = parts["device-0"].x[:5]
    assert clients["device-0"].scores(x, clients["device-0"].rule()).shape == (5, CLASSES)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_a_round_is_computed_for_each_kind_of_sample(kind):
    shape, network = KINDS[kind]
    plan = Plan("fedavg", CLASSES, 1, network=Network(network), shape=shape)
    cost = plan.load().cost(Sizes(plan.model(), CLASSES, 24, 2, CLASSES, CLASSES))
    assert cost.up["weights"] == sum(w.numel() for w in plan.model().parameters())


def test_the_memory_for_public_samples_follows_from_the_shape_of_the_run():
    """A long series needs more memory than a small image: 64 samples of 2^20 numbers are 256 MB."""
    shape = (16, 1 << 16)
    plan = Plan("fcclplus", CLASSES, 1, network=Network("cnn1d"), shape=shape, public=PublicSet(samples=64))
    part = TensorSamples(torch.zeros(3, *shape), torch.arange(3))
    with pytest.raises(
        SettingsError, match=r"takes 268,.* bytes of memory, which is more than this device's limits"
    ):
        HalfBuilder(DeviceLimits(memory_bytes=100 << 20), part, "a", None, torch.device("cpu")).build(plan)
    assert 4 * 64 * math.prod(shape) == 256 << 20


@pytest.mark.parametrize(
    ("network", "own", "told"),
    [
        (
            "mlp",
            (8, 8),
            r"series \[4, 16\], but this device's samples are series \[8, 8\]; set data.shape = \[4, 16\]",
        ),
        ("mlp", (64,), r"samples are series \[4, 16\], but this device's samples are vectors \[64\]"),
        (
            "cnn1d",
            (4, 4, 4),
            r"samples are series \[4, 16\], but this device's samples are images \[4, 4, 4\]",
        ),
        (
            "mlp",
            (4, 20),
            r"network does not take this device's series \[4, 20\], because the run's samples are series \[4, 16\]; "
            r"set data.shape = \[4, 16\] on this device if its source can give such samples, or shape = \[4, 20\] in",
        ),
    ],
)
def test_a_device_with_samples_of_another_shape_refuses_the_plan_with_both_shapes(network, own, told):
    """It also holds if both shapes have equally many numbers, which a perceptron would not notice."""
    plan = Plan("fedavg", CLASSES, 1, network=Network(network), shape=(4, 16))
    part = TensorSamples(torch.zeros(3, *own), torch.arange(3))
    with pytest.raises(SettingsError, match=told):
        HalfBuilder(DeviceLimits(), part, "a", None, torch.device("cpu")).build(plan)


def test_the_public_samples_of_a_run_with_series_have_the_shape_of_the_series():
    drawn = PublicSet(samples=9, batch=4)
    plan = Plan("fcclplus", CLASSES, 1, network=Network("cnn1d"), shape=(4, 16), public=drawn)
    half = plan.client_half(samples((4, 16), 0), "a")
    assert [tuple(x.shape) for x in half.public] == [(4, 4, 16), (5, 4, 16)]
    assert all(-1 <= float(x.min()) < float(x.max()) <= 1 for x in half.public)
