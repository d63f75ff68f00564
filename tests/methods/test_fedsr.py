"""Tests of FedSR against a plain loop and values computed by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from protofleet.edge_client.evaluate import measure
from protofleet.methods import fedsr
from protofleet.methods.contract.base import Ask, seeded
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets import catalog as nets
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.settings.input_shape import InputShape
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
from tests.methods.tiny import CLASSES, normal, play, same

HYPER = fedsr.Hyper(**LOCAL, c_l2r=0.05, c_cmi=0.02, weight_decay=0.01)
D = network().embedding_size


def wide():
    model = network()
    with initialised_from(7):
        model.projector = nn.Linear(model.feature_size, 2 * D)
    return model.double()


def own_parts():
    return {
        "mu": torch.zeros(CLASSES, D).double().requires_grad_(),
        "sigma": torch.ones(CLASSES, D).double().requires_grad_(),
        "scale": torch.ones(()).double().requires_grad_(),
    }


def plain(hyper, data):
    owns = {name: own_parts() for name in data}

    def train(model, device, number):
        own, noise = owns[device], order_of(device, number, "train-noise")
        parameters = [*model.parameters(), *own.values()]
        sgd = torch.optim.SGD(
            parameters, lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay
        )
        for x, y in batches(model, data[device], hyper.batch, hyper.epochs, order_of(device, number)):
            both = model.embed(x)
            mu, sigma = both[:, :D], torch.log1p(both[:, D:].exp())
            z = mu + sigma * torch.randn(len(y), D, generator=noise, dtype=torch.float64)
            squares = z.square().sum(1)
            size = (squares + 1e-12).sqrt() if hyper.l2r == "norm" else squares
            there = Normal(own["mu"][y], torch.log1p(own["sigma"][y].exp()))
            cmi = kl_divergence(Normal(own["scale"] * mu, own["scale"].abs() * sigma), there).sum(1)
            loss = F.cross_entropy(model.head(z), y) + hyper.c_l2r * size.mean() + hyper.c_cmi * cmi.mean()
            gradients = torch.autograd.grad(loss, parameters)
            if hyper.clip is not None:
                length = torch.cat([g.flatten() for g in gradients]).norm()
                gradients = [g * min(1.0, hyper.clip / (float(length) + 1e-6)) for g in gradients]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            sgd.step()

    shared, _ = averaged(PRESENT, train, data=data, make=wide)
    return shared, owns


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("change", [{}, {"l2r": "squared"}, {"clip": 0.5}])
def test_four_rounds_equal_those_of_a_plain_loop(change, data):
    hyper = replace(HYPER, **change)
    server, clients = played(fedsr, hyper, data)
    shared, owns = plain(hyper, data)
    for key, value in shared.items():
        found = server.payload()[f"weights.{key.replace('projector.', 'projector.both.')}"]
        assert_close(found, value, rtol=1e-8, atol=1e-10)
    for name, own in owns.items():
        for key, value in own.items():
            assert_close(clients[name].own.get_parameter(key), value, rtol=1e-8, atol=1e-10)


def test_the_term_cmi_equals_the_oracle():
    given, expected = case("fedsr.cmi")
    own = fedsr.Conditional(1, 2).double()
    own.load_state_dict(
        {"mu": given["r_mu"], "sigma": given["r_sigma_raw"], "scale": torch.tensor(given["C"])}
    )
    check(expected, loss=own(given["z_mu"], given["z_sigma"], torch.zeros(1, dtype=torch.int64)))


def test_both_forms_of_the_term_l2r_equal_the_oracle():
    given, expected = case("fedsr.l2r")
    found = {kind: fedsr.SIZE[kind](given["z"]) for kind in ("norm", "squared")}
    check(expected, code_mean_norm=found["norm"], paper_style_mean_squared_norm=found["squared"])


@pytest.mark.parametrize("scale", [-2.0, -1.0, 0.0, 1e-9])
def test_a_scale_that_is_not_positive_gives_finite_gradients(scale):
    own = fedsr.Conditional(CLASSES, D).double()
    own.scale.data.fill_(scale)
    mu, sigma = normal(5, D).requires_grad_(), normal(5, D, seed=1).abs().requires_grad_()
    loss = own(mu, sigma, torch.arange(5) % CLASSES)
    loss.backward()
    assert loss.isfinite() and all(w.grad.isfinite().all() for w in (mu, sigma, own.mu, own.sigma, own.scale))
    positive = fedsr.Conditional(CLASSES, D).double()
    positive.scale.data.fill_(-scale)
    assert_close(loss, positive(-mu, sigma, torch.arange(5) % CLASSES))


def test_a_sigma_of_zero_and_a_representation_of_zero_have_finite_gradients():
    own = fedsr.Conditional(CLASSES, D)
    mu, sigma = torch.zeros(3, D, requires_grad=True), torch.zeros(3, D, requires_grad=True)
    (own(mu, sigma, torch.arange(3)) + fedsr.SIZE["norm"](mu + sigma)).backward()
    assert mu.grad.isfinite().all() and sigma.grad.isfinite().all()


def test_a_prediction_is_the_mean_softmax_of_twenty_draws():
    client = halves(fedsr, HYPER)[1]["device-0"]
    x = client.data.x
    client.model.eval()
    mu, sigma = client.moments(x)
    noise = torch.randn(20, D, generator=seeded(7, "draws"), dtype=torch.float64)
    mean = sum(client.model.head(mu + sigma * eps).softmax(1) for eps in noise) / 20
    assert_close(client.predict(x).exp(), mean, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(client.predict(x).exp(), client.model.head(mu).softmax(1), atol=1e-3)


def test_the_evaluation_does_not_depend_on_the_device_or_on_the_batches():
    clients = halves(fedsr, HYPER)[1]
    a, b = clients["device-0"], clients["device-1"]
    assert measure(a, a.rule(), a.data) == measure(a, a.rule(), a.data) == measure(b, b.rule(), a.data)
    b.begin(9)
    a.model.eval()
    b.model.eval()
    pieces = torch.cat([b.predict(piece) for piece in a.data.x.split(5)])
    assert_close(pieces, a.predict(a.data.x), rtol=1e-10, atol=1e-12)


def test_a_prediction_contains_the_logarithms_of_probabilities():
    client = halves(fedsr, HYPER)[1]["device-0"]
    assert_close(client.predict(client.data.x).exp().sum(1), torch.ones(len(client.data.y)).double())


def test_each_step_draws_new_noise_and_a_repeated_round_draws_the_same_noise():
    client = halves(fedsr, HYPER)[1]["device-0"]
    x = client.data.x[:1].expand(4, -1)
    client.noise = client.generator("train-noise")
    losses = {client.objective(x, torch.zeros(4).long()).item() for _ in range(3)}
    assert len(losses) == 3
    sent = []
    for _ in range(2):
        again = halves(fedsr, HYPER)[1]["device-0"]
        again.begin(1)
        sent.append(snapshot(again.run(Ask("train"))))
    assert same(*sent)


def test_the_private_state_of_a_device_survives_a_restart():
    server, clients = played(fedsr, HYPER)
    other, others = halves(fedsr, HYPER)
    for half, old in ((other, server), *((others[name], clients[name]) for name in DATA)):
        half.restore(snapshot(old.state()))
    assert {k: v.numel() for k, v in clients["device-0"].state().items()} == {
        "conditional.mu": CLASSES * D,
        "conditional.sigma": CLASSES * D,
        "conditional.scale": 1,
    }
    play(server, clients, 5)
    play(other, others, 5)
    assert same(other.payload(), server.payload())
    assert all(same(others[name].state(), clients[name].state()) for name in DATA)


def test_a_device_sends_the_wide_projector_and_not_its_own_parts():
    server, clients = halves(fedsr, HYPER)
    (up,) = play(server, clients, 1)
    for sent in up.values():
        assert sent.keys() == server.payload().keys()
        assert sent["weights.projector.both.weight"].shape == (2 * D, 8)
        assert not any("conditional" in key or "own" in key for key in sent)


@pytest.mark.parametrize("name", nets.names())
def test_the_projector_of_each_network_is_twice_as_wide_as_the_input_of_its_head(name):
    recipe = nets.RECIPES[name]
    samples = (InputShape(axes) for axes in ((3, 32, 32), (1, 28, 28), nets.SERIES))
    sample = next(one for one in samples if recipe.problem_with(one) is None)
    with torch.device("meta"):
        plan = Plan("fedsr", 4, 1, **sample.settings(), network=Network(name, head="mlp"))
        model = plan.server_half().model
    both = model.projector.both.weight
    assert both.shape == (2 * model.embedding_size, model.feature_size)


def test_a_state_with_another_width_is_refused():
    client = halves(fedsr, HYPER)[1]["device-0"]
    state = {**client.state(), "conditional.mu": torch.zeros(CLASSES, D + 1)}
    with pytest.raises(RuntimeError, match="conditional.mu has the shape"):
        client.restore(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"c_l2r": -0.1}, "c_l2r is -0.1, it must be at least 0"),
        ({"c_cmi": math.inf}, "c_cmi is inf, it must be at least 0 and at most"),
        ({"l2r": "l1"}, "l2r is 'l1', it must be one of norm, squared"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
