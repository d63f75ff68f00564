"""Tests that FedPLCC's settings reach the formulas, and of nearest-prototype scores and the figures of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedplcc
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.maths.finch import finch_star
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import clients_of, normal, play, server_of
from tests.support.small_federation import simulation

HYPER = fedplcc.Hyper(epochs=2, batch=8, lr=0.05, lambda1=1.0)
LABELS, SHARES = torch.tensor([0, 0, 0, 1, 2]), torch.tensor([0.5, 0.3, 0.2, 1.0, 1.0])


def client_with(hyper=HYPER, G=None, labels=LABELS, shares=SHARES):
    client = clients_of(fedplcc.METHOD, hyper)["device-0"]
    G = normal(len(labels), 6).float() if G is None else G
    client.receive({"prototypes": G, "labels": labels, "shares": shares})
    return client


@pytest.mark.parametrize(
    "change", [{"alpha": 0.25}, {"phi": 1.0}, {"phi": 0.1}, {"tau": 0.5}, {"negative": "signed"}]
)
def test_each_setting_changes_its_formula(change):
    hyper = replace(HYPER, **change)
    client = client_with(hyper)
    x, y = client.data.x, client.data.y
    G, contra, corr = client.table[0], [], []
    for z, label in zip(client.model.embed(x), y, strict=True):
        cosines = F.cosine_similarity(z.unsqueeze(0), G)
        if hyper.negative == "signed":
            s = cosines.sign() * cosines.abs() ** hyper.alpha
        else:
            s = cosines.clamp(min=1e-6) ** hyper.alpha
        own = label == LABELS
        terms = torch.exp(s / hyper.tau) * SHARES
        contra.append(-torch.log(terms[own].sum() / terms.sum()))
        k = {1.0: 3, 0.5: 2, 0.1: 1}[hyper.phi] if label == 0 else 1
        corr.append(-(s * SHARES)[own].sort(descending=True).values[:k].sum())
    expected = (
        F.cross_entropy(client.model(x), y) + torch.stack(contra).mean() + 10 * torch.stack(corr).mean()
    )
    assert_close(client.objective(x, y), expected)


def test_the_default_settings_are_those_of_the_paper():
    h = fedplcc.Hyper()
    assert (h.epochs, h.batch, h.lr, h.momentum, h.weight_decay) == (10, 32, 0.01, 0.9, 1e-5)
    assert (h.alpha, h.tau, h.phi, h.lambda1, h.weight_of_corr) == (0.5, 0.07, 0.5, 100.0, 1000.0)


def test_the_score_of_a_class_is_that_of_its_nearest_prototype():
    client = client_with(labels=torch.tensor([0, 0, 0, 1, 1]))
    scores = client.scores(client.data.x, client.other_rules()["prototype"])
    for z, row in zip(client.model.embed(client.data.x), scores, strict=True):
        cosines = F.cosine_similarity(z.unsqueeze(0), client.table[0])
        assert_close(row[:2], torch.stack([cosines[:3].max(), cosines[3:].max()]))
        assert row[2] < -1  # No cosine is below -1.


def test_a_class_with_an_opposite_prototype_scores_above_a_class_without_one():
    client = client_with(labels=torch.tensor([0]), shares=torch.ones(1), G=torch.ones(1, 6))
    with torch.no_grad():
        client.table = (-client.model.embed(client.data.x)[:1], *client.table[1:])
        assert client.scores(client.data.x, client.other_rules()["prototype"])[0].argmax() == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_weighted_centroid_weighs_the_centroids_of_the_server_by_counts(weighted):
    server = server_of(fedplcc.METHOD, replace(HYPER, weighted_centroid=weighted))
    server.begin(1, [Member("a", 60), Member("b", 60)])
    rows, counts = normal(3, 6).float(), torch.tensor([50, 1, 9])
    story = server.round()
    next(story)
    weights = snapshot(weights_of(server.model))
    sent = {"a": slice(0, 2), "b": slice(2, 3)}
    replies = [
        Reply(
            device, 60,
            {**weights, "prototypes": rows[own], "labels": torch.zeros_like(counts[own]), "counts": counts[own]},
        )
        for device, own in sent.items()
    ]  # fmt: skip
    with pytest.raises(StopIteration):
        story.send(replies)
    share = counts.double() if weighted else torch.ones(3).double()
    expected = (share.unsqueeze(1) * rows).sum(dim=0) / share.sum()
    assert_close(server.table[0], expected.float().unsqueeze(0))
    assert_close(server.table[0], finch_star(rows, counts, weighted_centroid=weighted)[0])


def test_the_monitor_reports_the_number_of_prototypes_of_each_class():
    server, clients = server_of(fedplcc.METHOD, HYPER), clients_of(fedplcc.METHOD, HYPER)
    assert server.monitor() == {}
    play(server, clients, 1)
    labels = server.table[1].tolist()
    expected = {f"prototypes.{c}": labels.count(c) for c in range(3)}
    assert server.monitor() == {**expected, "prototypes.all": len(labels)}


@pytest.mark.parametrize("value", [1e7, -1e7])
def test_a_far_too_large_prototype_is_refused(value):
    server = server_of(fedplcc.METHOD, HYPER)
    server.begin(1, [Member("a", 4)])
    ask = next(server.round())
    whole = torch.ones(1, dtype=torch.int64)
    sent = {"prototypes": torch.full((1, 6), value), "labels": whole, "counts": whole}
    assert "prototypes has" in ask.problem_with({**snapshot(weights_of(server.model)), **sent}).message


def test_the_advice_for_a_diverged_run_names_the_learning_rate_and_lambda1(tmp_path):
    machine = simulation(tmp_path / "one", "fedplcc").service.run.machine
    assert machine.way_out == "lower method.lr or method.lambda1"
    assert simulation(tmp_path / "two", "fedavg").service.run.machine.way_out == "lower method.lr"


def test_the_advice_for_a_diverged_run_names_only_settings_of_the_method():
    @dataclass(frozen=True)
    class Own:
        rate: float = 0.1

    assert replace(fedplcc.METHOD, Hyper=Own).way_out_of_divergence == ""
    assert replace(fedplcc.METHOD, Hyper=Own, calmer=("rate",)).way_out_of_divergence == "lower method.rate"
