"""Tests of FedPall: two phases in each round, the classifier of a device, its mixing and masking."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedpall
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.maths.adversary import MASKS, mixing_share
from protofleet.methods.nets import mlp
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.mlp import fedpall_classifier
from protofleet.methods.parts.local import embed
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.fedpall_halves import (
    HYPER,
    WIDTH,
    C,
    D,
    asks_of,
    client_of,
    halves,
    only,
    parameters_of,
    rows,
    told,
)
from tests.methods.fedpall_halves import narrow as narrow
from tests.methods.tiny import SHARDS, floats, play, same, server_of, tiny

# The arrays that are sent


def test_a_round_has_two_phases():
    server, clients = halves()
    asks = asks_of(server)
    first, second = play(server, clients, 1)
    assert [ask.phase for ask in asks] == ["train", "mix"]
    assert floats(first["device-1"]) == {"prototypes": 2 * D, "labels": 2, "counts": 2}
    assert floats(second["device-1"]) == {"features": 18 * D, "labels": 18}
    assert first["device-2"]["labels"].tolist() == [0, 2] and first["device-2"]["counts"].tolist() == [2, 5]
    assert torch.equal(second["device-2"]["labels"], SHARDS["device-2"].y)
    assert floats(asks[1].payload) == {"prototypes": 3 * D, "labels": 3}
    assert same(asks[1].payload, snapshot(server.payload()))


@pytest.mark.parametrize("device", SHARDS)
@pytest.mark.parametrize("number", [1, 2])
def test_the_sent_numbers_equal_the_closed_form(device, number):
    server, clients = halves()
    asks = asks_of(server)
    for i in range(1, number + 1):
        uploads = play(server, clients, i)
    held = len(set(SHARDS[device].y.tolist()))
    cost = fedpall.cost(Sizes(tiny(), held, examples=len(SHARDS[device].y), clients=3))
    for found, expected in (
        ([u[device] for u in uploads], cost.up),
        ([parameters_of(ask.payload) for ask in asks[-2:]], cost.down),
    ):
        each = [floats(payload) for payload in found]
        assert {kind: sum(f.get(kind, 0) for f in each) for kind in set().union(*each)} == expected


def test_the_closed_form_has_the_numbers_of_the_paper_and_the_prototypes(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", 512)
    cost = fedpall.cost(Sizes(Net(nn.Identity(), 2048, 10), held=10, examples=100, clients=5))
    paper = cost.down["classifier"] + cost.down["amplifier"]
    assert paper == 2_634_250 and paper + cost.down["prototypes"] == 2_654_730
    assert cost.up == {"prototypes": 20480, "labels": 110, "counts": 10, "features": 204800}


def test_the_training_task_has_prototypes_only_if_a_device_missed_the_last_round():
    server, clients = halves()
    asks = asks_of(server)
    for number, present in enumerate([(0, 1), (0, 1), (0,), (0, 1), (0, 1, 2), (0, 1, 2)], start=1):
        play(server, only(clients, *present), number)
    sent = ["prototypes" in ask.payload for ask in asks if ask.phase == "train"]
    assert sent == [False, False, False, True, True, False]
    assert [len(a.payload["amplifier.6.weight"]) for a in asks if a.phase == "train"] == [2, 2, 2, 2, 3, 3]


def test_devices_train_with_the_prototypes_of_the_previous_round():
    server, clients = halves()
    play(server, clients, 1)
    before = snapshot(server.payload())
    for client in clients.values():
        assert torch.equal(client.prototypes, before["prototypes"]) and client.known.all()
        client.begin(2)
        client.receive(snapshot(server.payload_for_cohort()))
        assert torch.equal(client.prototypes, before["prototypes"])


def test_the_last_evaluation_does_not_change_the_classifier_of_a_device():
    server, clients = halves()
    play(server, clients, 1)
    client = clients["device-0"]
    scores, way = (
        client.predict(client.data.x),
        client.scores(client.data.x, client.other_rules()["prototype"]),
    )
    client.receive(snapshot(server.payload()))
    client.after_last_round()
    assert floats(server.payload()) == {"prototypes": 3 * D, "labels": 3}
    assert torch.equal(scores, client.predict(client.data.x))
    assert torch.equal(way, client.scores(client.data.x, client.other_rules()["prototype"]))


# The device's classifier


def test_the_global_classifier_replaces_that_of_a_device_except_for_batch_norms():
    client = client_of(lr=1e-30)  # So training changes only the statistics.
    norms = [part for part in client.H if isinstance(part, nn.BatchNorm1d)]
    with torch.no_grad():
        for norm in norms:
            norm.weight.fill_(3.0)
            norm.bias.fill_(2.0)
            norm.running_mean.fill_(50.0)
    told(client, C_g=fedpall_classifier(D, C, seed=99))
    down = dict(client.C_g)
    client.run(Ask("train"))
    for layer in (0, 3, 6):
        for name, w in client.H[layer].named_parameters():
            assert torch.equal(w, down[f"classifier.{layer}.{name}"])
    assert len(norms) == 2
    for norm in norms:
        assert (norm.weight == 3.0).all() and (norm.bias == 2.0).all()
        assert norm.running_mean.min() > 20.0 and norm.num_batches_tracked == 6  # 24 samples twice, by 8


def test_the_global_classifier_replaces_the_whole_head_with_classifier_network():
    client = client_of(classifier="network", lr=1e-30)
    told(client, C_g=nn.Linear(D, C)).run(Ask("train"))
    assert torch.equal(client.model.head.weight, client.C_g["classifier.weight"])
    server = server_of(fedpall.METHOD, replace(HYPER, classifier="network"))
    assert floats(server.payload_for_cohort())["classifier"] == D * C + C


def test_a_device_keeps_its_classifier_if_use_global_classifier_is_off():
    one, other = client_of(use_global_classifier=False), client_of()
    told(one, C_g=fedpall_classifier(D, C, seed=99)).run(Ask("train"))
    told(other).run(Ask("train"))
    assert same(weights_of(one.model), weights_of(other.model))
    told(other, C_g=fedpall_classifier(D, C, seed=99)).run(Ask("train"))
    assert not same(weights_of(one.model), weights_of(other.model))


def test_both_halves_begin_with_the_same_classifier_of_the_shape_in_the_paper():
    server, clients = halves()
    first = snapshot(weights_of(server.models.C_g))
    assert [tuple(w.shape) for w in server.models.C_g.parameters() if w.dim() == 2] == [
        (WIDTH, D),
        (WIDTH, WIDTH),
        (C, WIDTH),
    ]
    assert all(same(first, weights_of(c.model.head)) for c in clients.values())
    assert not same(first, weights_of(fedpall.Server(tiny(), HYPER, 8).models.C_g))


def test_a_classifier_of_another_shape_is_refused_with_the_missing_array():
    with pytest.raises(WrongArraysError, match="no classifier.weight"):
        told(client_of(classifier="network"), C_g=fedpall_classifier(D, C))


# The answers of a device


@pytest.mark.parametrize("norm", [False, True])
def test_local_prototypes_are_the_class_means_of_the_features_after_training(norm):
    client = client_of(norm=norm)
    sent = client.run(Ask("train"))
    z = embed(client.model, client.data.x)
    for row, label in zip(sent["prototypes"], range(C), strict=True):
        assert_close(row, z[client.data.y == label].mean(dim=0))


def test_normalised_local_prototypes_have_the_same_direction():
    plain, made = (client_of(normalise_local_protos=flag).run(Ask("train")) for flag in (False, True))
    assert_close(made["prototypes"], F.normalize(plain["prototypes"], dim=1))


def test_features_in_training_mode_use_the_statistics_of_their_batch():
    client = client_of("device-1", norm=True, features="train", normalise_local_protos=False)
    client.run(Ask("train"))
    before = snapshot(weights_of(client.model))
    z = client.features()
    assert same(before, weights_of(client.model))
    layers, expected = client.model.features, []
    for part in torch.split(client.data.x, 8):
        pre = layers[0](part)
        deviation = (pre.var(dim=0, unbiased=False) + layers[1].eps).sqrt()
        normed = (pre - pre.mean(dim=0)) / deviation * layers[1].weight + layers[1].bias
        expected.append(client.model.projector(normed.relu()))
    assert_close(z, torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)
    told(client, rows())
    assert torch.equal(client.features(), z)  # "mix" mixes the features whose means were sent.


def mixture(client, **changes):
    """Return (features that are sent, features, the prototypes of their classes)."""
    client.hyper = replace(client.hyper, **changes)
    sent = client.run(Ask("mix"))["features"]
    return sent, embed(client.model, client.data.x), client.prototypes[client.data.y]


def test_the_mixture_is_equation_9_with_one_share_in_each_round():
    client, shares = told(client_of(), rows()), []
    for number in range(1, 9):
        client.begin(number)
        sent, z, G = mixture(client, beta=1.0)
        found = ((sent - G) / (z - G)).median()
        assert_close(sent, found * z + (1 - found) * G, rtol=1e-4, atol=1e-4)
        shares.append(round(float(found), 4))
    assert len(set(shares)) > 3 and all(0.8 <= a <= 1.0 and abs(a - round(a, 2)) < 2e-4 for a in shares)


def test_mixing_shares_fill_their_interval_and_have_the_set_number_of_decimals():
    generator = torch.Generator().manual_seed(0)
    coarse = [mixing_share(0.8, 1.0, 2, generator) for _ in range(2000)]
    assert min(coarse) == 0.8 and max(coarse) == 1.0 and len(set(coarse)) == 21
    fine = [mixing_share(0.2, 0.4, 15, generator) for _ in range(2000)]
    assert 0.2 <= min(fine) < 0.201 and 0.399 < max(fine) <= 0.4 and len(set(fine)) == 2000


@pytest.mark.parametrize("kind", ["bernoulli", "exact"])
def test_the_mask_of_a_round_is_the_same_for_all_samples(kind):
    client, kept = told(client_of(), rows()), set()
    for number in range(1, 13):
        client.begin(number)
        sent, z, _ = mixture(client, mask=kind, beta=0.5, alpha_low=1.0)
        left = (sent != 0).any(dim=0)
        assert torch.equal(sent, torch.where(left, z, 0.0))
        kept.add(tuple(left.tolist()))
    assert len(kept) > 3
    assert {sum(k) for k in kept} == {3} if kind == "exact" else len({sum(k) for k in kept}) > 1


def test_a_mask_keeps_the_share_beta_of_the_numbers():
    many = [MASKS["bernoulli"](1000, 0.9, torch.Generator().manual_seed(i)) for i in range(20)]
    assert torch.stack(many).mean() == pytest.approx(0.9, abs=0.01)
    assert len({int(m.sum()) for m in many}) > 5
    assert all(mask(50, 1.0, torch.Generator()).all() for mask in MASKS.values())


def test_noise_is_added_to_features_that_are_not_mixed_or_masked():
    client = told(client_of(), rows())
    sent, z, _ = mixture(client, noise=0.5, beta=1.0, alpha_low=1.0)
    assert (sent - z).std() == pytest.approx(0.5, abs=0.1)
    assert not torch.equal(sent, mixture(client, noise=0.0)[0])


def test_a_sample_whose_class_has_no_prototype_is_not_mixed():
    client = told(client_of(), rows()[:2], (0, 2))
    sent, z, _ = mixture(client, beta=1.0, alpha_low=0.8, alpha_high=0.8)
    bare = client.data.y == 1
    assert torch.equal(sent[bare], z[bare])
    assert_close(sent[client.data.y == 2], 0.8 * z[client.data.y == 2] + 0.2 * rows()[1])


def test_the_random_numbers_differ_between_devices_and_rounds_but_not_between_runs():
    def sent(device, number):
        client = told(client_of(device, SHARDS["device-0"], beta=0.5), rows())
        client.begin(number)
        torch.manual_seed(number + len(device))
        return client.run(Ask("mix"))["features"]

    one = sent("device-0", 1)
    assert torch.equal(one, sent("device-0", 1))
    assert not torch.equal(one, sent("device-1", 1)) and not torch.equal(one, sent("device-0", 2))
