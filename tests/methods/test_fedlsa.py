"""Tests of FedLSA's halves by direct calls: anchors on the server, the sphere on the devices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedavg, fedlsa
from protofleet.methods.contract.base import Ask
from protofleet.methods.maths.anchors import anchor_cross_entropy, separation
from protofleet.methods.maths.geometry import margins, unit
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import CLASSES, answer, clients_of, floats, normal, play, same, server_of

HYPER = fedlsa.Hyper(epochs=2, batch=8, lr=0.05, server_epochs=20)


def halves(hyper=HYPER, **network):
    return server_of(fedlsa.METHOD, hyper, **network), clients_of(fedlsa.METHOD, hyper, **network)


def client_with(anchors=None, **changes):
    client = clients_of(fedlsa.METHOD, replace(HYPER, **changes))["device-0"]
    client.receive({} if anchors is None else {"anchors": anchors})
    return client


def directions(rows=3, size=6, seed=0):
    return F.normalize(normal(rows, size, seed=seed, dtype=torch.float32), dim=1)


def test_the_first_broadcast_has_anchors_that_were_fitted_to_the_first_classifier():
    server, clients = halves()
    assert "anchors" not in server.payload()  # Before the first round nothing is trained.
    first, _ = halves()
    ask = next(server.round())
    first.fit_anchors()
    assert same(weights_of(first.model), weights_of(server.model))
    assert torch.equal(ask.payload["anchors"], first.anchors)
    assert floats(ask.payload) == {"weights": 40 + 54 + 21, "anchors": 3 * 6}
    assert floats(answer(clients["device-0"], ask, 1)) == {"weights": 40 + 54 + 21}


def test_the_setting_skip_omits_the_anchors_only_in_round_1():
    server, clients = halves(replace(HYPER, anchors_first_round="skip"))
    first = next(server.round())
    assert "anchors" not in first.payload and "anchors" not in first.wants
    play(server, clients, 1)
    assert same(next(server.round()).payload, server.payload()) and "anchors" in server.payload()


def test_the_payload_after_the_last_round_equals_the_broadcast_of_a_next_round():
    server, clients = halves()
    play(server, clients, 1)
    assert same(snapshot(server.payload()), snapshot(next(server.round()).payload))


def test_anchors_are_unit_vectors_and_the_classifier_stays_frozen():
    server, clients = halves()
    play(server, clients, 1)
    before = snapshot(weights_of(server.model))
    R, Theta = server.learner.R.detach().clone(), snapshot(weights_of(server.learner.Theta))
    server.fit_anchors()
    assert_close(server.anchors.norm(dim=1), torch.ones(3))
    assert same(before, weights_of(server.model))
    assert all(w.grad is None for w in server.model.parameters())
    assert not torch.equal(R, server.learner.R)
    assert not torch.equal(Theta["weights.0.weight"], server.learner.Theta[0].weight)
    assert not server.anchors.requires_grad


def test_r_and_theta_continue_from_the_previous_round():
    twice, once = (server_of(fedlsa.METHOD, replace(HYPER, server_epochs=n)) for n in (10, 20))
    twice.fit_anchors()
    twice.fit_anchors()
    once.fit_anchors()
    assert torch.equal(twice.anchors, once.anchors)


def test_anchors_depend_only_on_the_seed():
    one = server_of(fedlsa.METHOD, HYPER)
    torch.manual_seed(3)
    other = server_of(fedlsa.METHOD, HYPER)
    foreign = fedlsa.Server(one.model, HYPER, 8)
    for server in (one, other, foreign):
        server.fit_anchors()
    assert torch.equal(one.anchors, other.anchors) and not torch.equal(one.anchors, foreign.anchors)


def trained_head(server):
    """Set the head as after rounds of training: long rows, one direction for each class, two of them close."""
    rows = directions()
    rows[1] = F.normalize(rows[0] + 0.5 * rows[1], dim=0)
    with torch.no_grad():
        server.model.head.weight.copy_(6.0 * rows)
        server.model.head.bias.zero_()


def test_anchors_of_the_default_settings_are_close_to_a_simplex():
    server = server_of(fedlsa.METHOD, fedlsa.Hyper())
    trained_head(server)
    server.fit_anchors()
    cosines = (server.anchors @ server.anchors.T)[~torch.eye(3, dtype=torch.bool)]
    assert cosines.mean() == pytest.approx(-1 / 2, abs=0.01)
    assert anchor_cross_entropy(server.model.head, server.anchors).detach() < 0.1


def test_the_separation_loss_increases_the_margins():
    def margin(**changes):
        server = server_of(fedlsa.METHOD, fedlsa.Hyper(alpha=0.4, tau=0.2, **changes))
        trained_head(server)
        server.fit_anchors()
        return float(margins(server.anchors).min())

    assert margin() > margin(use_sep=False) + 0.01


@pytest.mark.parametrize("reading, inside", [("inside", True), ("paper", False)])
def test_the_loss_of_the_server_is_equation_5(reading, inside):
    server = server_of(fedlsa.METHOD, replace(HYPER, separation=reading, alpha=0.3, tau=0.2))
    anchors, head = directions(), server.model.head
    expected = anchor_cross_entropy(head, anchors) + 0.3 * separation(anchors, 0.2, tau_inside=inside)
    assert_close(server.anchor_loss(head, anchors), expected)
    server.hyper = replace(server.hyper, use_sep=False)
    assert_close(server.anchor_loss(head, anchors), anchor_cross_entropy(head, anchors))


def naive_h(client):
    z = client.model.projector(client.model.features(client.data.x))
    return torch.stack([row / row.norm() for row in z])


def test_the_loss_of_a_device_is_equation_10():
    anchors = directions()
    client = client_with(anchors, lam=0.7, tau=0.2)
    h, y = naive_h(client), client.data.y
    shares = torch.softmax(h @ anchors.T / 0.2, dim=1)[range(len(y)), y]
    expected = F.cross_entropy(client.model.head(h), y) - 0.7 * shares.log().mean()
    assert_close(client.objective(client.data.x, y), expected)


def test_a_device_keeps_its_anchors_when_it_receives_an_empty_payload():
    client = client_with(directions())
    client.receive({})
    assert torch.equal(client.anchors, directions())


@pytest.mark.parametrize("com", ["vmf", "l2", "none"])
def test_the_loss_without_anchors_or_compactness_is_cross_entropy_on_the_sphere(com):
    client = client_with(None if com != "none" else directions(), com=com)
    entropy = F.cross_entropy(client.model.head(naive_h(client)), client.data.y)
    assert_close(client.objective(client.data.x, client.data.y), entropy)


def test_the_setting_l2_adds_the_squared_distance_to_the_anchor():
    anchors = directions()
    client = client_with(anchors, com="l2", lam=0.7)
    h, y = naive_h(client), client.data.y
    gap = torch.stack([((a - anchors[c]) ** 2).sum() for a, c in zip(h, y, strict=True)]).mean()
    expected = F.cross_entropy(client.model.head(h), y) + 0.7 * gap
    assert_close(client.objective(client.data.x, y), expected)


@pytest.mark.parametrize("com", ["vmf", "l2"])
def test_training_moves_the_embeddings_towards_their_anchors(com):
    def spread(**changes):
        # The anchors are not where the classes would go without them.
        client = client_with(directions().roll(1, 0), epochs=20, **changes)
        client.run(Ask("train"))
        return fedlsa.COM[com](naive_h(client), client.data.y, client.anchors, HYPER.tau).detach()

    assert 5 * spread(lam=1.0, com=com) < spread(com="none")


@pytest.mark.parametrize("projector", [True, False])
def test_the_scores_depend_only_on_the_direction_of_the_embedding(projector):
    server, clients = halves(projector=projector)
    play(server, clients, 1)
    client = clients["device-0"]
    client.receive(server.payload())
    scores = client.predict(client.data.x)
    with torch.no_grad():
        last = client.model.projector if projector else client.model.features[0]
        last.weight.mul_(10)
        last.bias.mul_(10)
    assert_close(client.predict(client.data.x), scores)
    assert_close(client.sphere(client.data.x).norm(dim=1), torch.ones(len(scores)))


def test_fedlsa_without_both_losses_is_fedavg_on_the_sphere(monkeypatch):
    server, clients = halves(replace(HYPER, use_sep=False, com="none"))
    play(server, clients, 1)
    plain = LocalHyper(epochs=2, batch=8, lr=0.05)
    other, others = server_of(fedavg.METHOD, plain), clients_of(fedavg.METHOD, plain)
    for client in others.values():
        forward = client.model.head.forward
        monkeypatch.setattr(client.model.head, "forward", lambda z, f=forward: f(F.normalize(z, dim=1)))
    play(other, others, 1)
    for name, w in other.payload().items():
        assert_close(server.payload()[name], w)


def test_the_monitor_reports_the_margins_between_anchors():
    server, clients = halves()
    assert server.monitor() == {}
    play(server, clients, 1)
    figures = server.monitor()
    nearest = torch.cdist(server.anchors, server.anchors).fill_diagonal_(math.inf).min(dim=1).values
    assert sorted(figures) == ["margin.0", "margin.1", "margin.2", "margin.mean"]
    assert [figures[f"margin.{c}"] for c in range(3)] == pytest.approx(nearest.tolist())
    assert figures["margin.mean"] == pytest.approx(float(nearest.mean()))


def test_restoring_a_state_from_before_the_first_fit_removes_the_anchors():
    server, clients = halves()
    start = server.state()
    play(server, clients, 1)
    after = server.anchors
    server.restore(start)
    assert server.anchors is None and "anchors" not in server.payload()
    for client in clients.values():
        client.anchors = None
    play(server, clients, 1)
    assert torch.equal(server.anchors, after)


@pytest.mark.parametrize(
    "setting, value, limit",
    [
        ("tau", 0.0, "at least 1e-06"),
        ("alpha", -1.0, "at least 0"),
        ("lam", -1.0, "at least 0"),
        ("server_epochs", 0, "at least 1"),
        ("server_lr", math.nan, "above 0"),
        ("anchors_first_round", "no", "one of pretrain, skip"),
        ("separation", "no", "one of inside, paper"),
        ("com", "no", "one of vmf, l2, none"),
        ("batch", 0, "at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, value, limit):
    shown = repr(value) if isinstance(value, str) else value
    with pytest.raises(ValueError) as error:
        fedlsa.Hyper(**{setting: value})
    assert str(error.value).startswith(f"{setting} is {shown}, it must be {limit}")


def test_the_other_rule_of_a_device_predicts_the_nearest_anchor():
    client = clients_of(fedlsa.METHOD, fedlsa.Hyper())["device-0"]
    assert client.other_rules() == {}
    client.receive({"anchors": unit(normal(CLASSES, 6).float())})
    h, scores = client.embedding(client.data.x), client.scores(client.data.x, client.other_rules()["anchor"])
    assert_close(h.norm(dim=1), torch.ones(len(h)))
    gaps = torch.cdist(h, client.anchors)
    assert torch.equal(scores.argmax(1), gaps.argmin(1))
