"""Tests of Per-FedAvg against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import perfedavg
from protofleet.methods.contract.base import seeded
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    averaged,
    batches,
    halves,
    network,
    order_of,
    played,
)
from tests.methods.test_oracles import case, check
from tests.methods.tiny import Shard, play

HYPER = perfedavg.Hyper(**{**LOCAL, "batch": 3}, beta=0.03)  # Of seven samples the last batch has one.
ODD = replace(HYPER, batch=4)  # Seven samples give one batch with halves of four and three.


def plain(hyper, data):
    def train(model, device, number):
        names = [key for key, _ in model.named_parameters()]
        for x, y in batches(model, data[device], 2 * hyper.batch, hyper.epochs, order_of(device, number)):
            half = -(-len(y) // 2)
            first, rest = (x[:half], y[:half]), (x[half:], y[half:]) if len(y) > 1 else (x, y)
            here = dict(model.named_parameters())
            take_in(model, len(first[1]))
            slopes = torch.autograd.grad(F.cross_entropy(model(first[0]), first[1]), list(here.values()))
            there = {
                key: (here[key] - hyper.lr * slope).detach().requires_grad_()
                for key, slope in zip(names, slopes, strict=True)
            }
            take_in(model, len(rest[1]))
            loss = F.cross_entropy(torch.func.functional_call(model, there, rest[0]), rest[1])
            with torch.no_grad():
                for key, slope in zip(names, torch.autograd.grad(loss, list(there.values())), strict=True):
                    here[key].sub_(hyper.beta * slope)

    return averaged(PRESENT, train, data=data)


def take_in(model, samples):
    """Put batch norms into training mode only for two or more samples, because one sample has no variance."""
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d)):
        norm.train(samples > 1)


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["three classes", "a class that no device holds"])
@pytest.mark.parametrize("hyper", [HYPER, ODD], ids=["a batch of one", "a batch of seven"])
def test_four_rounds_equal_those_of_a_plain_loop(hyper, data):
    server, _ = played(perfedavg, hyper, data)
    shared, _ = plain(hyper, data)
    for key, value in shared.items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-9, atol=1e-11)


def test_a_step_equals_the_oracle():
    given, expected = case("perfedavg.step")
    w = nn.Parameter(torch.tensor(given["w"], dtype=torch.float64))
    outer = perfedavg.FromWhereItStood([w], given["beta"])
    outer.look_ahead((w - 1) ** 2, given["inner_lr"])
    check(expected, w_inner=w.clone())
    outer.zero_grad()
    ((w + 2) ** 2).backward()
    outer.step()
    check(expected, w_new=w)
    assert (given["f1"], given["f2"]) == ("(w-1)^2", "(w+2)^2")


def test_a_batch_of_one_sample_uses_it_for_both_halves():
    hyper = replace(HYPER, epochs=1)
    one = Shard(DATA["device-0"].x[:1], DATA["device-0"].y[:1])
    client = perfedavg.METHOD.Client(network(), one, hyper, 7, "device-0")
    server = halves(perfedavg, hyper)[0]
    client.begin(1)
    client.receive(snapshot(server.payload()))
    model = network().eval()
    here = list(model.parameters())
    before = [w.detach().clone() for w in here]
    for w, slope in zip(here, torch.autograd.grad(F.cross_entropy(model(one.x), one.y), here), strict=True):
        w.data -= hyper.lr * slope
    there = torch.autograd.grad(F.cross_entropy(model(one.x), one.y), here)
    client.run(next(server.round()))
    for found, start, slope in zip(client.model.parameters(), before, there, strict=True):
        assert_close(found.detach(), start - hyper.beta * slope)


def test_beta_is_the_learning_rate_by_default():
    server, clients = halves(perfedavg, replace(HYPER, beta=None))
    other, others = halves(perfedavg, replace(HYPER, beta=HYPER.lr))
    a, b = (next(iter(c.values())).run(next(s.round())) for s, c in ((server, clients), (other, others)))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_device_adapts_by_one_step_on_one_batch_before_the_evaluation():
    server, clients = played(perfedavg, HYPER)
    client, number = clients["device-0"], len(PRESENT) + 1
    client.begin(number)
    client.receive(snapshot(server.payload()))
    model, data = network(), DATA["device-0"]
    model.load_state_dict(client.model.state_dict())
    rows = torch.randperm(len(data.y), generator=seeded(7, number, "device-0", "settle"))[: HYPER.batch]
    assert len(rows) == HYPER.batch < len(data.y) and HYPER.beta != HYPER.lr
    slopes = torch.autograd.grad(
        F.cross_entropy(model.train()(data.x[rows]), data.y[rows]), list(model.parameters())
    )
    client.after_last_round()
    for found, start, slope in zip(client.model.parameters(), model.parameters(), slopes, strict=True):
        assert_close(found, start - HYPER.lr * slope, rtol=1e-10, atol=1e-12)
    for found, seen in zip(client.model.buffers(), model.buffers(), strict=True):
        assert_close(found, seen, rtol=1e-10, atol=1e-12)


def test_a_device_without_samples_does_not_adapt():
    data = DATA["device-2"]
    nobody = perfedavg.METHOD.Client(network(), Shard(data.x[:0], data.y[:0]), HYPER, 7, "nobody")
    nobody.after_last_round()
    assert all(
        torch.equal(w, old) for w, old in zip(nobody.model.parameters(), network().parameters(), strict=True)
    )


def test_a_device_is_evaluated_with_and_without_the_adaptation():
    server, clients = played(perfedavg, HYPER)
    client = clients["device-2"]
    assert client.other_rules() == {}  # While the device learns, it has no other rules.
    client.receive(snapshot(server.payload()))
    x, plain_model = client.data.x, network()
    plain_model.load_state_dict(client.model.state_dict())
    client.after_last_round()
    client.model.eval()
    with torch.no_grad():
        (name, rule), without = client.other_rules().popitem(), plain_model.eval()(x)
        assert name == "unadapted" and torch.equal(client.scores(x, rule), without)
        assert torch.equal(client.predict(x), client.model(x)) and not torch.equal(client.predict(x), without)


def test_a_batch_whose_double_is_above_the_limit_is_refused():
    problem = "batch is 500_000_001, it must be at least 1 and at most 500_000_000"
    with pytest.raises(ValueError, match=problem):
        perfedavg.Hyper(batch=500_000_001)
    with pytest.raises(SettingsError, match=f"method.{problem}"):
        decode(perfedavg.Hyper, {"batch": 500_000_001}, "method")
    server, clients = halves(perfedavg, replace(HYPER, batch=500_000_000, epochs=1))
    play(server, clients, 1)
    assert all(value.isfinite().all() for value in server.payload().values())
