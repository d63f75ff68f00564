"""Tests of FedSA against a plain loop."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedsa
from protofleet.methods.contract.base import seeded
from protofleet.methods.nets.base import initialised_from
from tests.methods.plain import DATA, LOCAL, PRESENT, WITHOUT_2, check_models, fit, network, order_of, played
from tests.methods.plain import in_float64 as in_float64
from tests.methods.tiny import CLASSES

pytestmark = pytest.mark.usefixtures("in_float64")

HYPER = fedsa.Hyper(**LOCAL, lambda1=2.0, lambda2=0.6, lambda3=0.7, decay=0.8)
D = network().embedding_size


def first_anchors():
    """Return the class anchors of a server of seed 7, after one pass through its layers in training mode."""
    with initialised_from(seeded(7, "server", "anchors").initial_seed()), torch.no_grad():
        rows = torch.randn(CLASSES, D)
        for _ in range(2):
            rows = nn.Linear(D, D)(rows)
            deviation = (rows - rows.mean(0)).square().mean(0)
            rows = ((rows - rows.mean(0)) / (deviation + 1e-5).sqrt()).clamp(min=0.0)
    return rows


def apart(a, b):
    return ((a - b).square().sum() + 1e-12).sqrt()


def margin_of(rows, form):
    others = [[float(apart(a, b)) for j, b in enumerate(rows) if j != i] for i, a in enumerate(rows)]
    if form == "nearest":
        return sum(map(min, others)) / len(rows)
    return sum(map(sum, others)) / (len(rows) * (len(rows) - 1))


def trained(model, data, hyper, A, d, order):
    """Train the model of one device and return its {class: (mean, samples)}."""
    seen = []

    def loss(x, y):
        z = model.embed(x)
        seen.extend(zip(z.detach(), y.tolist(), strict=True))
        found = F.cross_entropy(model.head(z), y)
        found = found + hyper.lambda1 * (z - A[y]).square().mean()
        contrast = []
        for row, label in zip(z, y.tolist(), strict=True):
            scores = [-(apart(row, anchor) + (d if j == label else 0.0)) for j, anchor in enumerate(A)]
            contrast.append(torch.logsumexp(torch.stack(scores), 0) - scores[label])
        found = found + hyper.lambda2 * sum(contrast) / len(contrast)
        calibration = [torch.logsumexp(model.head(a), 0) - model.head(a)[c] for c, a in enumerate(A)]
        return found + hyper.lambda3 * sum(calibration) / CLASSES

    fit(model, list(model.parameters()), data, hyper.epochs, hyper, order, loss)
    if hyper.proto_source == "eval":
        with torch.no_grad():
            seen = list(zip(model.eval().embed(data.x), data.y.tolist(), strict=True))
    held = sorted(set(data.y.tolist()))
    return {c: (torch.stack([z for z, y in seen if y == c]).mean(0), int((data.y == c).sum())) for c in held}


def plain(hyper, devices):
    models, own = {name: network() for name in devices}, {}
    A, P = first_anchors(), {}
    for number, present in enumerate(PRESENT, 1):
        sent = {}
        for name in present:
            last = [row for row, _ in own.get(name, {}).values()]
            d = margin_of(A, hyper.margin)
            d = max(d, margin_of(last, hyper.margin)) if len(last) > 1 else d
            sent[name] = trained(models[name], devices[name], hyper, A, d, order_of(name, number))
        own |= sent
        A = A.clone()
        for c in range(CLASSES):
            pairs = [table[c] for table in sent.values() if c in table]
            if pairs:
                P[c] = sum(n * row for row, n in pairs) / sum(n for _, n in pairs)
                A[c] = hyper.decay * A[c] + (1 - hyper.decay) * P[c]
    return A, P, models


@pytest.mark.parametrize("devices", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize(("source", "margin"), [("eval", "pairs"), ("training", "nearest")])
def test_four_rounds_equal_those_of_a_plain_loop(source, margin, devices):
    hyper = replace(HYPER, proto_source=source, margin=margin)
    server, clients = played(fedsa, hyper, devices)
    A, P, models = plain(hyper, devices)
    payload = server.payload()
    assert_close(payload["anchors"], A, rtol=1e-8, atol=1e-10)
    assert payload["labels"].tolist() == sorted(P) == ([0, 1, 2] if devices is DATA else [0, 1])
    assert_close(payload["prototypes"], torch.stack([P[c] for c in sorted(P)]), rtol=1e-8, atol=1e-10)
    check_models(clients, models)
