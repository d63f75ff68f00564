"""Tests of FedPLCC's two halves: what they send, which prototypes stay, and that gradients are finite."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofleet.methods import fedavg, fedplcc
from protofleet.methods.contract.base import Ask, Member
from protofleet.methods.maths.contrast import corrected, own_mean, sparse_similarity, top_k, weighted_contrast
from protofleet.methods.maths.finch import partition
from protofleet.methods.parts.clusters import local_clusters, of_class
from protofleet.methods.parts.local import embed
from tests.methods.tiny import CLASSES, SHARDS, Shard, clients_of, floats, normal, play, same, server_of

HYPER = fedplcc.Hyper(epochs=2, batch=8, lr=0.05, lambda1=1.0)


def halves(hyper=HYPER, **network):
    return server_of(fedplcc.METHOD, hyper, **network), clients_of(fedplcc.METHOD, hyper, **network)


def test_the_payloads_have_the_model_and_any_number_of_rows_for_each_class():
    server, clients = halves()
    assert floats(server.payload()) == {"weights": 40 + 54 + 21}
    (up,) = play(server, clients, 1)
    for name, sent in up.items():
        J = len(sent["labels"])
        assert floats(sent) == {"weights": 115, "prototypes": J * 6, "labels": J, "counts": J}
        assert sent["counts"].sum() == len(SHARDS[name].y)
    G = len(server.table[1])
    assert floats(server.payload()) == {"weights": 115, "prototypes": G * 6, "labels": G, "shares": G}


def test_local_prototypes_are_the_means_of_the_finch_clusters_of_each_class():
    _, clients = halves()
    client = clients["device-0"]
    rows, labels, counts = local_clusters(client.model, client.data)
    z, y, place = embed(client.model, client.data.x), client.data.y, 0
    for c in range(CLASSES):
        held = z[y == c]
        for cluster in range(int(partition(held).max()) + 1):
            members = held[partition(held) == cluster]
            assert_close(rows[place], members.mean(dim=0))
            assert (labels[place], counts[place]) == (c, len(members))
            place += 1
    assert place == len(rows)


def test_prototypes_are_computed_in_evaluation_mode_from_each_sample():
    client = clients_of(fedplcc.METHOD, replace(HYPER, batch=7), norm=True)["device-0"]
    sent = client.run(Ask("train"))
    assert sent["counts"].sum() == len(client.data.y)
    assert_close(sent["prototypes"], local_clusters(client.model, client.data)[0])


def test_the_shares_of_each_class_in_the_global_table_sum_to_one():
    server, clients = halves()
    play(server, clients, 1)
    _, labels, shares = server.table
    for c in range(CLASSES):
        assert_close(shares[labels == c].sum(), torch.tensor(1.0))


def test_up_to_three_local_prototypes_of_a_class_become_one_global_prototype():
    server, clients = halves()
    (up,) = play(server, clients, 1)
    sent = torch.cat([payload["labels"] for payload in up.values()]).bincount(minlength=CLASSES)
    few = [c for c in range(CLASSES) if 1 <= sent[c] <= 3]
    assert few and [int((server.table[1] == c).sum()) for c in few] == [1] * len(few)


def test_a_class_that_no_device_holds_keeps_its_rows():
    server, clients = halves()
    play(server, clients, 1)
    before = of_class(2, server.table)
    play(server, {"device-1": clients["device-1"]}, 2)  # device-1 holds classes 0 and 1.
    assert all(map(torch.equal, before, of_class(2, server.table)))
    assert set(server.table[1].tolist()) == {0, 1, 2}


def test_a_class_that_no_device_ever_held_has_no_rows_and_is_never_predicted():
    server, clients = halves()
    play(server, {"device-1": clients["device-1"]}, 1)
    client = clients["device-0"]
    client.receive(server.payload())
    assert set(server.table[1].tolist()) == {0, 1}
    assert not (client.scores(client.data.x, client.other_rules()["prototype"]).argmax(1) == 2).any()
    assert client.objective(client.data.x, client.data.y).isfinite()


def test_only_the_first_round_has_the_same_model_as_fedavg():
    plain = {f: getattr(HYPER, f) for f in ("epochs", "batch", "lr", "momentum", "weight_decay")}
    server, clients = halves()
    other = server_of(fedavg.METHOD, fedavg.LocalHyper(**plain))
    others = clients_of(fedavg.METHOD, fedavg.LocalHyper(**plain))
    play(server, clients, 1)
    play(other, others, 1)
    assert same({k: v for k, v in server.payload().items() if k.startswith("weights")}, other.payload())
    play(server, clients, 2)
    play(other, others, 2)
    assert not same({k: v for k, v in server.payload().items() if k.startswith("weights")}, other.payload())


@pytest.mark.parametrize(
    "change", [{}, {"use_contra": False}, {"use_corr": False}, {"use_weights": False}, {"lambda2": 0.3}]
)
def test_the_loss_of_a_device_is_equation_4(change):
    hyper = replace(HYPER, **change)
    client = clients_of(fedplcc.METHOD, hyper)["device-0"]
    G, labels = normal(5, 6).float(), torch.tensor([0, 0, 0, 1, 2])
    shares = torch.tensor([0.5, 0.3, 0.2, 1.0, 1.0])
    client.receive({"prototypes": G, "labels": labels, "shares": shares})
    x, y = client.data.x, client.data.y
    W = shares if hyper.use_weights else torch.ones(5)
    contra, corr = [], []
    for z, label in zip(client.model.embed(x), y, strict=True):
        s = F.cosine_similarity(z.unsqueeze(0), G).clamp(min=1e-6) ** hyper.alpha
        terms, own = torch.exp(s / hyper.tau) * W, labels == label
        contra.append(-torch.log(terms[own].sum() / terms.sum()))
        products = (s * W)[own].sort(descending=True).values
        corr.append(-products[: math.ceil(hyper.phi * len(products))].sum())
    expected = F.cross_entropy(client.model(x), y)
    if hyper.use_contra:
        expected = expected + hyper.lambda1 * torch.stack(contra).mean()
    if hyper.use_corr:
        expected = expected + (hyper.lambda2 or 10 * hyper.lambda1) * torch.stack(corr).mean()
    assert_close(client.objective(x, y), expected)


def test_signed_similarity_keeps_the_sign():
    z, G = torch.tensor([[1.0, 0.0]]), torch.tensor([[-4.0, 3.0], [4.0, 3.0]])
    assert_close(sparse_similarity(z, G, 0.5, signed=True), torch.tensor([[-(0.8**0.5), 0.8**0.5]]))


def test_a_sample_without_a_prototype_of_its_class_is_not_part_of_the_mean():
    s, W = torch.rand(4, 3), torch.ones(3)
    labels, y = torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1, 2])
    for losses in (weighted_contrast(s, y, labels, W, 0.07), corrected(s, y, labels, W, 0.5)):
        assert len(losses) == 2
    assert own_mean(weighted_contrast(s, torch.full((4,), 2), labels, W, 0.07)) == 0


@given(st.integers(0, 10**6), st.sampled_from([0.25, 0.5, 1.0]), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_losses_and_gradients_are_finite_for_all_features(seed, alpha, signed, half):
    """Features lie at right angles, opposite, on the prototype itself, and at zero; one prototype is all zeros."""
    G = normal(6, 4, seed=seed, dtype=torch.float32)
    G[5] = 0
    z = torch.cat([G, -G, torch.zeros(1, 4), torch.eye(4), normal(5, 4, seed=seed + 1, dtype=torch.float32)])
    z = (z.half() if half else z).requires_grad_()
    y, labels = torch.arange(len(z)) % 3, torch.tensor([0, 0, 1, 1, 2, 2])
    W = torch.tensor([0.9, 0.1, 0.5, 0.5, 1e-6, 1.0])
    s = sparse_similarity(z, G, alpha, signed=signed)
    loss = own_mean(weighted_contrast(s, y, labels, W, 0.07)) + own_mean(corrected(s, y, labels, W, 0.5))
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.isfinite() and gradient.isfinite().all()


@given(st.floats(0.01, 1.0), st.integers(1, 500))
def test_top_k_is_at_least_one_and_at_most_the_number_of_rows(phi, n):
    assert 1 <= int(top_k(phi, torch.tensor(n))) <= n


def test_a_restored_server_has_the_same_bits():
    server, clients = halves()
    play(server, clients, 1)
    other = server_of(fedplcc.METHOD, HYPER)
    other.restore({k: v.clone() for k, v in server.state().items()})
    assert same(server.payload(), other.payload())
    fresh = server_of(fedplcc.METHOD, HYPER)
    fresh.restore(server_of(fedplcc.METHOD, HYPER).state())
    assert fresh.table is None


def test_more_rows_or_counts_than_samples_are_refused():
    server, clients = halves()
    server.begin(1, [Member("device-1", 9)])
    ask = next(server.round())
    weights = {k: v for k, v in ask.payload.items() if k.startswith("weights")}

    def problem(labels, counts):
        rows = {"labels": torch.tensor(labels), "counts": torch.tensor(counts)}
        found = ask.problem_with({**weights, "prototypes": torch.ones(len(labels), 6), **rows}, 9)
        return found and found.message

    assert problem([0, 0, 0, 1], [2, 2, 3, 2]) is None
    assert problem([2, 0, 1], [1, 1, 1]) is None, "a class may have one sample"
    assert "labels has 1 in several rows, in one of which counts is below 2" in problem([0, 1, 1], [2, 3, 1])
    assert "over the limit of 6" in problem([0] * 7, [2] * 7)
    assert "add up to 10" in problem([0] * 5, [2] * 5)
    assert "above 9" in problem([0], [10]) and "below 1" in problem([0], [0])
    assert "above 2" in problem([3], [2])


def test_the_rows_of_an_honest_device_are_never_too_many():
    """For any labels, FINCH makes at most n / 2 clusters, or one, of n samples of a class."""
    dice = torch.Generator().manual_seed(3)
    for n in (1, 2, 3, 5, 8, 21, 60):
        y = torch.randint(CLASSES, (n,), generator=dice)
        client = clients_of(fedplcc.METHOD, HYPER, {"a": Shard(normal(n, 4, seed=n).float(), y)})["a"]
        server = server_of(fedplcc.METHOD, HYPER)
        server.begin(1, [Member("a", n)])
        ask = next(server.round())
        client.receive(ask.payload)
        assert ask.problem_with(client.run(ask), n) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.0}, "alpha is 0.0, it must be above 0 and at most 1"),
        ({"alpha": math.nan}, "alpha is nan"),
        ({"tau": 0.0}, "tau is 0.0, it must be at least 1e-06"),
        ({"phi": 1.1}, "phi is 1.1, it must be above 0 and at most 1"),
        ({"lambda1": -1.0}, "lambda1 is -1.0, it must be at least 0"),
        ({"lambda2": -1.0}, "lambda2 is -1.0, it must be at least 0 and at most 1_000_000, or left out"),
        ({"lambda1": math.inf}, "lambda1 is inf, it must be at least 0 and at most"),
        ({"negative": "abs"}, "negative is 'abs', it must be one of clamp, signed"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)


def test_lambda2_is_ten_times_lambda1_by_default():
    assert (
        replace(HYPER, lambda1=3.0).weight_of_corr == 30.0 and replace(HYPER, lambda2=0.0).weight_of_corr == 0
    )
