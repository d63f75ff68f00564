"""`simulate` works with every method when data or batches are as small as possible."""

import math

import pytest
import torch

import protofleet
from protofleet.methods.contract.catalog import load, names
from protofleet.methods.nets.base import Net
from protofleet.testing import simulate
from tests.support.few_methods import of_each_shape

# Settings that keep a simulation short or keep a method from diverging on a few samples, where a method has them.
CHEAP = {
    "epochs": 1, "lr": 0.02, "server_epochs": 2, "server_steps": 2, "head_epochs": 2, "init_steps": 5, "virtual": 4,
    "lambda1": 1.0, "lam": 1.0, "temperature": 1.0, "least_samples": 1,
}  # fmt: skip
TWO = {"a": (0, 1, 2) * 3, "b": (0, 1, 2) * 3}
CASES = {
    "two devices": (TWO, 4),
    "a class each": ({"a": (0,) * 6, "b": (1,) * 6, "c": (0, 1) * 3}, 4),
    "one class in all": ({"a": (1,) * 6, "b": (1,) * 5}, 4),
    "batches of one": (TWO, 1),
}


def build(shape, classes, feature_size):
    layers = torch.nn.Linear(shape[0], 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()
    return Net(torch.nn.Sequential(*layers), 8, classes)


TINY = protofleet.network(build)


def device(labels, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    x = 2 * torch.eye(6)[y] + 0.3 * torch.randn(len(y), 6, generator=g)
    return protofleet.Data((x, y), (x, y), 3, (x, y), f"domain-{seed}")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", of_each_shape(names()))
def test_every_method_ends_with_finite_numbers_and_reboots_change_none(method, case):
    devices, batch = CASES[case]
    known = load(method).Hyper.__dataclass_fields__
    settings = {name: value for name, value in {**CHEAP, "batch": batch}.items() if name in known}
    data = {name: device(labels, seed) for seed, (name, labels) in enumerate(devices.items())}
    given = {"rounds": 2, "settings": settings, "network": TINY, "seed": 1}
    found = simulate(method, data, **given)
    rounds = 1 if found.server.answered() else 2  # If answers are kept, no device is asked again.
    assert 0 <= found.accuracy <= 1 and len(found.rounds) == rounds
    halves = [found.server, *found.clients.values()]
    floats = [v for half in halves for v in half.state().values() if v.is_floating_point()]
    assert all(bool(value.isfinite().all()) for value in floats)
    assert all(math.isfinite(v) for by_device in found.final.values() for v in by_device.values())
    again = simulate(method, data, **given, reboots=True)
    assert (again.final, again.rounds) == (found.final, found.rounds)
