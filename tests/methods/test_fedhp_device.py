"""Tests of FedHP on a device: anchors, the devices that receive them, the loss and its two optimizers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedhp
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.maths.geometry import unit
from protofleet.methods.parts.hyperspheres import nearness, spread, uniformity
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.fedhp_halves import HYPER, ask_to, client_with, halves, some
from tests.methods.tiny import (
    answer,
    clients_of,
    floats,
    normal,
    play,
    same,
    server_of,
    tiny,
)

# The anchors


def by_hand(start, steps, lr, momentum, decay):
    """Run SGD on equation 3 row by row.

    The gradient of a row has its nearest row and each row whose nearest row it is.
    """
    P, v = start.clone(), torch.zeros_like(start)
    for step in range(steps):
        P = torch.stack([row / row.norm() for row in P])
        g = torch.zeros_like(P)
        for i in range(len(P)):
            j = max((j for j in range(len(P)) if j != i), key=lambda j: float(P[i] @ P[j]))
            g[i] += P[j] / len(P)
            g[j] += P[i] / len(P)
        v = momentum * v + g + decay * P
        P = P - lr * v
    return torch.stack([row / row.norm() for row in P])


def test_the_anchors_are_made_by_sgd_on_equation_3_over_unit_rows():
    start = normal(4, 3).abs()
    assert_close(spread(start, 30, 0.1, 0.9, 1e-2), by_hand(start, 30, 0.1, 0.9, 1e-2))
    assert_close(spread(start, 0, 0.1, 0.9, 0.0), by_hand(start, 0, 0.1, 0.9, 0.0))


@pytest.mark.parametrize("classes, size", [(2, 6), (4, 6), (7, 6), (9, 3), (5, 1)])
def test_anchors_are_unit_rows_for_any_number_of_classes(classes, size):
    start = torch.rand(classes, size, generator=torch.Generator().manual_seed(1))
    found = spread(start, 100, 0.1, 0.9, 1e-4)
    assert_close(found.norm(dim=1), torch.ones(classes))
    assert uniformity(found) <= uniformity(unit(start)) and not found.requires_grad


def test_anchors_of_the_default_settings_are_close_to_a_simplex():
    anchors = server_of(fedhp.METHOD, fedhp.Hyper()).anchors
    assert nearness(anchors).max() == pytest.approx(-1 / 2, abs=0.05)
    assert anchors.dtype == torch.float32


def test_the_uniform_loss_refuses_rows_that_are_not_unit():
    with pytest.raises(ValueError, match="rows of length 1; normalise them"):
        uniformity(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))


def test_anchors_depend_only_on_seed_and_settings_and_are_the_first_prototypes():
    one = server_of(fedhp.METHOD, HYPER)
    torch.manual_seed(3)
    other, foreign = server_of(fedhp.METHOD, HYPER), fedhp.Server(one.model, HYPER, 8)
    assert torch.equal(one.anchors, other.anchors) and not torch.equal(one.anchors, foreign.anchors)
    assert torch.equal(one.prototypes, one.anchors)
    changes = {"init_steps": 49, "init_lr": 0.2, "init_momentum": 0.5, "init_weight_decay": 0.1}
    for name, value in changes.items():
        different = server_of(fedhp.METHOD, replace(HYPER, **{name: value}))
        assert not torch.equal(one.anchors, different.anchors), name


# The arrays that each device receives


def test_the_server_sends_anchors_only_in_the_first_round():
    server, clients = halves()
    for number, first in ((1, True), (2, False), (3, False)):
        ask = ask_to(server, clients, number)
        expected = fedhp.cost(Sizes(tiny(), held=2, first_round=first))
        up = play(server, clients, number)[0]
        assert floats(ask.payload) == expected.down
        assert [floats(p) for p in up.values()] == [expected.up] * 3
        assert expected.up == {"prototypes": 3 * 6} and ("anchors" in expected.down) == first


def test_a_cohort_receives_the_anchors_if_one_of_its_devices_lacks_them():
    server, clients = halves()
    play(server, some(clients, 0, 1), 1)
    assert "anchors" not in ask_to(server, some(clients, 0), 2).payload
    assert "anchors" in ask_to(server, clients, 2).payload  # device-2 is new, so it gets the anchors.
    play(server, some(clients, 1), 2)
    assert "anchors" in ask_to(server, some(clients, 2), 3).payload
    play(server, clients, 3)
    assert "anchors" not in ask_to(server, clients, 4).payload


def test_a_device_that_never_took_part_can_predict_in_the_last_evaluation():
    server, clients = halves()
    play(server, some(clients, 0), 1)
    server.begin(2, [Member("device-0", 24)])
    assert floats(server.payload()) == {"prototypes": 18, "anchors": 18}
    late = clients["device-2"]
    late.begin(2)
    late.receive(snapshot(server.payload()))
    assert torch.equal(late.anchors, server.anchors) and torch.equal(late.prototypes, server.prototypes)
    late.after_last_round()
    assert late.predict(late.data.x).isfinite().all()


def test_the_server_sends_the_anchors_to_an_unknown_cohort():
    assert "anchors" in next(server_of(fedhp.METHOD, HYPER).round()).payload


def test_the_server_records_only_devices_that_answered_as_holders_of_the_anchors():
    server, clients = halves()
    ask_to(server, clients)
    story = server.round()
    next(story)
    reply = Reply("device-0", 24, answer(clients["device-0"], ask_to(server, clients), 1))
    with pytest.raises(StopIteration):
        story.send([reply])
    assert server.holders == {"device-0"}


def test_a_device_that_lost_its_state_reports_it_and_receives_the_anchors():
    server, clients = halves()
    play(server, clients, 1)
    clients["device-1"] = clients_of(fedhp.METHOD, HYPER)["device-1"]
    up = play(server, clients, 2)[0]
    assert floats(up["device-1"]) == {"prototypes": 18, "lacks": 1} and "lacks" not in up["device-0"]
    assert server.holders == {"device-0", "device-2"}
    play(server, clients, 3)
    assert torch.equal(clients["device-1"].anchors, server.anchors)
    assert "anchors" not in ask_to(server, clients, 4).payload


def test_an_absent_device_keeps_its_network_and_takes_the_current_prototypes():
    server, clients = halves()
    play(server, clients, 1)
    out = clients["device-1"]
    before = out.state()
    play(server, some(clients, 0, 2), 2)
    assert same(out.state(), before) and not torch.equal(server.prototypes, out.prototypes)
    ask = ask_to(server, clients, 3)
    out.receive(snapshot(ask.payload))
    assert torch.equal(out.prototypes, server.prototypes)
    assert same(weights_of(out.model), {k: v for k, v in before.items() if k.startswith("weights")})


# The client's loss and its two optimizers


def naive_loss(client, x, y, reduction="sum", lam=0.1):
    z = client.model.projector(client.model.features(x))
    rows = []
    for one, label in zip(z, y, strict=True):
        e = torch.stack([torch.exp(-(one - p).square().sum().sqrt()) for p in client.prototypes])
        rows.append(-torch.log(e[int(label)] / e.sum()))
    drift = [
        1 - (a * p).sum() / (a.norm() * p.norm())
        for a, p in zip(client.anchors, client.prototypes, strict=True)
    ]
    total = torch.stack(drift).sum() / (len(drift) if reduction == "mean" else 1)
    return torch.stack(rows).mean() + lam * total


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_of_a_device_is_equation_1(reduction):
    client = client_with(lh_reduction=reduction, lam=0.7)
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), naive_loss(client, x, y, reduction, 0.7))


def test_the_loss_without_anchors_is_the_distance_cross_entropy():
    client = client_with()
    client.anchors = None
    x, y = client.data.x, client.data.y
    assert_close(
        client.objective(x, y), F.cross_entropy(-torch.cdist(client.model.embed(x), client.prototypes), y)
    )


def sgd_step(w, g, v, hyper):
    g = g + hyper.weight_decay * w
    v = g if v is None else hyper.momentum * v + g
    return w - hyper.lr * v, v


def adam_step(p, g, m, s, t, lr):
    m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
    return p - lr * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-8), m, s


def plain_fits(client, rounds):
    """Train a copy of the client by whole batches: momentum SGD on all but the head, Adam on the prototypes."""
    twin, hyper = deepcopy(client), client.hyper
    theta = [w for name, w in twin.model.named_parameters() if not name.startswith("head.")]
    momenta = [None] * len(theta)
    m, s, t, first = 0.0, 0.0, 0, twin.prototypes.detach().clone()
    for _ in range(rounds):
        twin.prototypes.data.copy_(first)
        for _ in range(hyper.epochs):
            loss = naive_loss(twin, twin.data.x, twin.data.y)
            *gradients, g = torch.autograd.grad(loss, [*theta, twin.prototypes])
            for i, (w, d) in enumerate(zip(theta, gradients, strict=True)):
                w.data, momenta[i] = sgd_step(w.data, d, momenta[i], hyper)
            t += 1
            twin.prototypes.data, m, s = adam_step(twin.prototypes.data, g, m, s, t, hyper.proto_lr)
    return twin


def test_both_optimizers_of_a_device_keep_their_state_over_two_rounds():
    client = client_with(batch=100, epochs=3, weight_decay=0.01)
    first = client.prototypes.detach().clone()
    expected = plain_fits(client, 2)
    for number in (1, 2):
        client.begin(number)
        client.receive({"prototypes": first})
        sent = client.run(Ask("train"))
    assert_close(sent["prototypes"], expected.prototypes.detach(), rtol=1e-4, atol=1e-5)
    for name, w in client.model.named_parameters():
        assert_close(w, expected.model.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_a_device_sends_only_prototypes_and_does_not_train_its_head():
    client = client_with()
    before = snapshot(weights_of(client.model))
    sent = client.run(Ask("train"))
    moved = {name for name, w in weights_of(client.model).items() if not torch.equal(w, before[name])}
    assert moved == {name for name in before if not name.startswith("weights.head.")}
    assert list(sent) == ["prototypes"] and sent["prototypes"].dtype == torch.float32
    assert torch.equal(sent["prototypes"], client.prototypes) and not sent["prototypes"].requires_grad


def test_sent_prototypes_do_not_change_with_the_device():
    client = client_with()
    sent = client.run(Ask("train"))["prototypes"]
    before = sent.clone()
    client.after_last_round()
    assert torch.equal(sent, before) and not torch.equal(client.prototypes, before)


@pytest.mark.parametrize("reset, steps", [(False, 12), (True, 6)])
def test_reset_adam_resets_the_moments_of_adam_in_each_round(reset, steps):
    client = client_with(reset_adam=reset)  # 24 samples: 3 steps an epoch
    received = {"prototypes": client.prototypes.detach().clone()}
    for number in (1, 2):
        client.begin(number)
        client.receive(received)
        client.run(Ask("train"))
    state = client.state()
    assert float(state["adam.0.step"]) == steps
    assert any(name.startswith("sgd.") for name in state)


def test_clipping_applies_only_to_the_network():
    def moved(**changes):
        client = client_with(batch=100, epochs=1, **changes)
        before = client.state()
        client.run(Ask("train"))
        return {k: float((v - before[k]).norm()) for k, v in client.state().items() if k in before}

    free, clipped = moved(), moved(clip=1e-6)
    assert free["prototypes"] == clipped["prototypes"] > 0
    assert clipped["weights.features.0.weight"] < 1e-3 * free["weights.features.0.weight"]


def test_a_device_predicts_the_class_of_the_nearest_prototype():
    client = client_with()
    x = client.data.x
    rows = client.model.embed(x[[4, 2, 0]]).detach()
    client.receive({"prototypes": rows})
    scores = client.predict(x)
    assert_close(scores, -torch.cdist(client.model.embed(x), rows), rtol=1e-4, atol=1e-4)
    assert scores[[4, 2, 0]].argmax(dim=1).tolist() == [0, 1, 2]


def test_a_device_predicts_with_its_own_prototypes_after_training():
    server, clients = halves()
    play(server, clients, 1)
    client = clients["device-0"]
    z = client.model.embed(client.data.x)
    assert_close(client.predict(client.data.x), -torch.cdist(z, client.prototypes), rtol=1e-4, atol=1e-4)
    assert not torch.equal(client.prototypes, server.prototypes)


def test_the_last_fit_is_one_more_local_training():
    client = client_with()
    client.run(Ask("train"))
    twin = client_with()
    twin.restore(client.state())
    for half in (client, twin):
        half.begin(9)
    client.after_last_round()
    twin.run(Ask("settle"))
    assert same(client.state(), twin.state())


def test_the_last_fit_changes_nothing_if_final_fit_is_off():
    client = client_with(final_fit=False)
    before = client.state()
    client.after_last_round()
    assert same(client.state(), before)
