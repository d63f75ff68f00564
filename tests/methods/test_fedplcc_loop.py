"""Tests of FedPLCC against a plain loop."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedplcc
from tests.methods.plain import LOCAL, averaged, fit, order_of, played
from tests.methods.plain_finch import MANY, ROUNDS, WITHOUT_2, finch

HYPER = fedplcc.Hyper(**{**LOCAL, "epochs": 1}, lambda1=0.5, lambda2=0.8, tau=0.2)


def local_table(z, y):
    """Return {class: [(row, samples)]} of one device."""
    found = {}
    for label in sorted(set(y.tolist())):
        held = z[y == label]
        found[label] = [(held[sorted(group)].mean(0), len(group)) for group in finch(held)]
    return found


def global_table(sent, before, hyper):
    """Return {class: (rows, weights)} from all devices; a class that no device sent keeps its earlier entry."""
    found = dict(before)
    for label in {label for table in sent for label in table}:
        pairs = [pair for table in sent for pair in table.get(label, [])]
        total, rows, weights = sum(n for _, n in pairs), [], []
        for group in finch([row for row, _ in pairs]):
            members = [pairs[i] for i in sorted(group)]
            samples = sum(n for _, n in members)
            if hyper.weighted_centroid:
                rows.append(sum(n * row for row, n in members) / samples)
            else:
                rows.append(sum(row for row, _ in members) / len(members))
            weights.append(samples / total)
        found[label] = rows, weights
    return found


def extra(z, y, table, hyper):
    """Return lambda1 L_contra + lambda2 L_corr, as a mean over the samples whose class has rows."""
    e, corr = {}, {}
    for c, (rows, weights) in table.items():
        cosine = F.cosine_similarity(z.unsqueeze(1), torch.stack(rows), dim=2)
        s, W = cosine.clamp(min=1e-6) ** hyper.alpha, torch.tensor(weights, dtype=torch.float64)
        e[c] = (W * torch.exp(s / hyper.tau)).sum(1)
        k = math.ceil(hyper.phi * len(rows) - 1e-9)
        corr[c] = -(s * W).sort(dim=1, descending=True).values[:, :k].sum(1)
    terms = [
        (-hyper.lambda1 * torch.log(e[c] / sum(e.values())) + hyper.lambda2 * corr[c])[y == c] for c in table
    ]
    return torch.cat(terms).sum() / max(len(torch.cat(terms)), 1) if terms else 0.0


def plain(hyper, devices):
    table, sent, begun = {}, [], 0

    def train(model, device, number):
        nonlocal table, begun
        if number > begun:  # At the first device of a round, the rows of the round before have arrived.
            table, begun = global_table(sent, table, hyper), number
            sent.clear()

        def loss(x, y):
            z = model.embed(x)
            return F.cross_entropy(model.head(z), y) + extra(z, y, table, hyper)

        data, order = devices[device], order_of(device, number)
        fit(model, list(model.parameters()), data, hyper.epochs, hyper, order, loss)
        with torch.no_grad():
            sent.append(local_table(model.eval().embed(data.x), data.y))

    shared, _ = averaged(ROUNDS, train, data=devices)
    return shared, global_table(sent, table, hyper)


@pytest.mark.parametrize("devices", [MANY, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain centroids", "weighted centroids"])
def test_four_rounds_equal_those_of_a_plain_loop(weighted, devices):
    hyper = replace(HYPER, weighted_centroid=weighted)
    server, _ = played(fedplcc, hyper, devices, ROUNDS)
    shared, table = plain(hyper, devices)
    payload = server.payload()
    for key, value in shared.items():
        assert_close(payload[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    known = [0, 1, 2] if devices is MANY else [0, 1]
    assert sorted(set(payload["labels"].tolist())) == sorted(table) == known
    for label, (rows, weights) in table.items():
        own = payload["labels"] == label
        assert_close(payload["prototypes"][own], torch.stack(rows), rtol=1e-7, atol=1e-9)
        assert_close(
            payload["shares"][own], torch.tensor(weights, dtype=torch.float64), rtol=1e-8, atol=1e-10
        )
    assert max(len(rows) for rows, _ in table.values()) > 1, (
        "with one row for each class, the test does not use FINCH"
    )
