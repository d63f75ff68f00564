"""Tests of FedSA on a device: anchors, equation 9, margins over rounds, prototypes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedsa
from protofleet.methods.contract.base import Ask, seeded
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.maths.margins import client_margin, margin
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.local import LocalHyper, embed, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.fedsa_halves import HYPER, TABLE, UP, client_with, gradients, halves, single
from tests.methods.test_oracles_fedsa import naive_contrast, naive_margin, naive_prototypes
from tests.methods.tiny import (
    clients_of,
    floats,
    play,
    same,
    server_of,
    shard,
    tiny,
)

# The first anchors


def naive_embedding(rows, layers):
    """Apply to the rows, for each layer: linear, batch norm over the rows, ReLU."""
    for linear in layers:
        rows = rows @ linear.weight.T + linear.bias
        mean, variance = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
        rows = ((rows - mean) / (variance + 1e-5).sqrt()).clamp(min=0)
    return rows.detach()


def test_the_first_anchors_are_an_untrained_embedding_of_random_class_anchors():
    with initialised_from(seeded(7, "server", "anchors").initial_seed()):
        class_anchors, layers = torch.randn(3, 6), [nn.Linear(6, 6), nn.Linear(6, 6)]
    assert_close(server_of(fedsa.METHOD, HYPER).anchors, naive_embedding(class_anchors, layers))
    without = server_of(fedsa.METHOD, replace(HYPER, anchors="random"))
    assert torch.equal(without.anchors, class_anchors)


def test_anchors_depend_only_on_the_seed():
    one = server_of(fedsa.METHOD, HYPER)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    other, foreign = server_of(fedsa.METHOD, HYPER), fedsa.Server(tiny(), HYPER, 8)
    assert torch.equal(one.anchors, other.anchors) and not torch.equal(one.anchors, foreign.anchors)
    assert torch.equal(torch.get_rng_state(), before) and not one.anchors.requires_grad


def test_projected_anchors_are_closer_together_than_drawn_anchors():
    """Half of 512 unit normals survive the ReLU: length 16, where random anchors have 22.6."""
    wide = Net(nn.Flatten(), 512, 10)
    projected, drawn = (
        fedsa.Server(wide, replace(HYPER, anchors=a), 7).anchors for a in ("projected", "random")
    )
    assert projected.min() == 0 and float(projected.norm(dim=1).mean()) == pytest.approx(16, abs=0.3)
    assert float(margin(projected, "nearest")) == pytest.approx(18.5, abs=1.0)
    assert float(margin(drawn, "nearest")) == pytest.approx(31, abs=1.0)


# A device's loss


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mcl_on", ["samples", "batch_prototypes"])
@pytest.mark.parametrize("reading, lambda1", [("samples", 10.0), ("batch_prototypes", 0.1)])
def test_the_loss_of_a_device_is_equation_9_in_each_of_its_readings(reading, lambda1, mcl_on, bias):
    changes = {"regularisation": reading, "mcl_on": mcl_on, "cc_bias": bias, "lambda2": 0.3, "lambda3": 0.7}
    client = client_with("device-2", **changes)
    x, y, anchors, head = client.data.x, client.data.y, client.anchors, client.model.head
    z = client.model.embed(x)
    means, labels = naive_prototypes(z, y)
    gaps = [(m - anchors[c]).norm() for m, c in zip(means, labels, strict=True)]
    pull = (z - anchors[y]).square().mean() if reading == "samples" else sum(gaps)
    rows = (z, y) if mcl_on == "samples" else (means, labels)
    contrast = naive_contrast(*rows, anchors, 0.7).mean()
    scores = anchors @ head.weight.T + (head.bias if bias else 0.0)
    calibration = -scores.log_softmax(dim=1).diagonal().mean()
    expected = F.cross_entropy(head(z), y) + lambda1 * pull + 0.3 * contrast + 0.7 * calibration
    assert_close(client.objective(x, y), expected)


@pytest.mark.parametrize("lambda2", [0.0, 0.5])
@pytest.mark.parametrize("lambda3", [0.0, 0.5])
@pytest.mark.parametrize("anchors", ["random", "projected"])
def test_the_settings_of_each_row_of_table_4_give_its_loss(anchors, lambda2, lambda3):
    hyper = replace(HYPER, anchors=anchors, lambda2=lambda2, lambda3=lambda3)
    server, clients = halves(hyper)
    client = clients["device-0"]
    client.receive(server.payload())
    client.margin = margin(server.anchors, "pairs")
    x, y, A = client.data.x, client.data.y, server.anchors
    z = client.model.embed(x)
    expected = F.cross_entropy(client.model.head(z), y) + 10 * F.mse_loss(z, A[y])
    expected = expected + lambda2 * naive_contrast(z, y, A, naive_margin(A, "pairs")).mean()
    expected = expected + lambda3 * F.cross_entropy(client.model.head(A), torch.arange(3))
    assert_close(client.objective(x, y), expected)


def test_the_loss_without_any_weight_is_cross_entropy_even_if_anchors_are_nan():
    client = client_with(lambda1=0.0, lambda2=0.0, lambda3=0.0)
    client.anchors = client.anchors * math.nan
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y))


def test_calibration_trains_only_the_head():
    without, by = (gradients(client_with(lambda3=weight)) for weight in (0.0, 5.0))
    assert {name for name in by if not torch.equal(by[name], without[name])} == {"head.weight", "head.bias"}


def test_received_anchors_get_no_gradient():
    client = client_with(regularisation="batch_prototypes")
    client.anchors.requires_grad_()
    client.margin = client_margin(client.anchors, client.own, "pairs")
    other = client_with(regularisation="batch_prototypes")
    other.margin = client.margin.detach()
    assert same(gradients(client), gradients(other))


# Margins over rounds


def watched(client):
    """Return a list that receives the margin used for each further batch of the device."""
    met, objective = [], client.objective
    client.objective = lambda x, y: met.append(float(client.margin)) or objective(x, y)
    return met


@pytest.mark.parametrize("rule", ["pairs", "nearest", "paper"])
def test_the_margin_of_a_round_comes_from_the_last_prototypes_of_the_device(rule):
    server, clients = halves(replace(HYPER, margin=rule, decay=0.5))
    client, others = clients["device-0"], {n: c for n, c in clients.items() if n != "device-0"}
    met = watched(client)
    first = naive_margin(server.anchors, rule)
    sent = play(server, clients, 1)[0]["device-0"]["prototypes"]
    assert met == pytest.approx([first] * 6)  # 24 samples, batches of 8, 2 epochs
    play(server, others, 2)  # device-0 takes no part in this round.
    met.clear()
    server.anchors = 0.1 * server.anchors
    assert (own := naive_margin(sent, rule)) > naive_margin(server.anchors, rule)
    play(server, clients, 3)
    assert met == pytest.approx([own] * 6)


def test_a_device_uses_its_own_margin_if_it_is_larger():
    client = client_with()
    client.own = 100 * single(2, 6, seed=4)
    client.run(Ask("train"))
    assert float(client.margin) == pytest.approx(naive_margin(100 * single(2, 6, seed=4), "pairs"))


def test_a_device_with_one_class_uses_the_global_margin():
    server, clients = halves(shards={"device-0": shard(0, (1,) * 6), "device-1": shard(1, (2,))})
    for number in (1, 2):
        expected = naive_margin(server.anchors, "pairs")
        up = play(server, clients, number)[0]
        assert [float(c.margin) for c in clients.values()] == pytest.approx([expected] * 2)
        assert up["device-0"]["labels"].tolist() == [1] and up["device-1"]["counts"].tolist() == [1]
    assert all(v.isfinite().all() for c in clients.values() for v in c.state().values())


# The answers of devices


def test_prototypes_are_class_means_after_training_in_evaluation_mode():
    client = clients_of(fedsa.METHOD, HYPER, norm=True)["device-2"]
    client.receive({"anchors": single(3, 6)})
    sent = client.run(Ask("train"))
    z = embed(client.model, client.data.x)
    assert sent["labels"].tolist() == [0, 2] and sent["counts"].tolist() == [2, 5]
    for row, label in zip(sent["prototypes"], (0, 2), strict=True):
        assert_close(row, z[client.data.y == label].mean(dim=0))
    assert torch.equal(client.own, sent["prototypes"])


def test_prototypes_of_the_source_training_are_means_of_all_features_during_training():
    hyper = replace(HYPER, epochs=3, batch=4, proto_source="training")
    client = clients_of(fedsa.METHOD, hyper, norm=True)["device-2"]
    client.receive({"anchors": single(3, 6)})
    for _ in range(2):  # The second round must start with new sums.
        seen, features = [], client.model.embed
        client.model.embed = lambda x: seen.append(features(x)) or seen[-1]
        labels, objective = [], client.objective
        client.objective = lambda x, y: labels.append(y) or objective(x, y)
        sent = client.run(Ask("train"))
        client.model.embed, client.objective = features, objective
        z, y = torch.cat(seen).detach(), torch.cat(labels)
        assert len(seen) == 6 and sent["counts"].tolist() == [2, 5]  # Of samples, not of epochs.
        for row, label in zip(sent["prototypes"], (0, 2), strict=True):
            assert_close(row, z[y == label].mean(dim=0))


def test_a_round_of_a_device_is_plain_sgd_on_its_loss():
    client = client_with(epochs=1)
    client.begin(1)
    model, d = tiny(), naive_margin(client.anchors, "pairs")

    def objective(x, y):
        z = model.embed(x)
        pull = 10 * F.mse_loss(z, client.anchors[y]) + 0.01 * naive_contrast(z, y, client.anchors, d).mean()
        calibration = F.cross_entropy(model.head(client.anchors), torch.arange(3))
        return F.cross_entropy(model.head(z), y) + pull + calibration

    local = LocalHyper(epochs=1, batch=8, lr=0.05, momentum=0.0, weight_decay=0.0)
    train(model, client.data, objective, local, seeded(7, 1, "device-0", "train"))
    client.run(Ask("train"))
    for name, value in weights_of(model).items():
        assert_close(weights_of(client.model)[name], value, msg=lambda m, name=name: f"{name}: {m}")


def test_each_broadcast_has_anchors_and_the_known_prototypes():
    server, clients = halves()
    ask = next(server.round())
    assert floats(ask.payload) == {"anchors": TABLE}
    up = play(server, {"device-1": clients["device-1"]}, 1)[0]["device-1"]
    assert floats(up) == {"prototypes": 2 * 6, "labels": 2, "counts": 2} and up["labels"].tolist() == [0, 1]
    assert floats(server.payload()) == {"anchors": TABLE, "prototypes": 2 * 6, "labels": 2}
    assert floats(play(server, clients, 2)[0]["device-0"]) == UP
    assert floats(server.payload()) == {"anchors": TABLE, "prototypes": TABLE, "labels": 3}
    assert same(snapshot(server.payload()), snapshot(next(server.round()).payload))


def test_a_broadcast_has_only_anchors_if_send_prototypes_is_off():
    server, clients = halves(replace(HYPER, send_prototypes=False, inference="classifier"))
    for number in (1, 2):
        assert floats(next(server.round()).payload) == {"anchors": TABLE}
        play(server, clients, number)
    assert floats(server.payload()) == {"anchors": TABLE} and server.known.all()


def test_the_cost_equals_the_sent_numbers():
    server, clients = halves()
    for number in (1, 2):
        down = floats(next(server.round()).payload)
        up = play(server, clients, number)[0]
        for name, client in clients.items():
            sizes = Sizes(client.model, held=len(client.data.y.unique()), first_round=number == 1)
            cost = fedsa.METHOD.cost(sizes)
            assert (cost.up, cost.down) == (floats(up[name]), down)


def test_the_cost_equals_the_numbers_of_the_paper():
    """For CIFAR-10, CIFAR-100 and Tiny-ImageNet, C x D numbers go up as prototypes and down as anchors."""
    for classes, expected in [(10, 5_120), (100, 51_200), (200, 102_400)]:
        cost = fedsa.METHOD.cost(Sizes(Net(nn.Flatten(), 512, classes), held=classes, first_round=True))
        assert cost.up["prototypes"] == cost.down["anchors"] == expected
