"""Tests of FedLSA against a plain loop."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedlsa
from protofleet.methods.contract.base import seeded
from protofleet.methods.nets.base import initialised_from
from tests.methods.plain import DATA, LOCAL, PRESENT, WITHOUT_2, averaged, fit, network, order_of, played
from tests.methods.plain import in_float64 as in_float64
from tests.methods.tiny import CLASSES

pytestmark = pytest.mark.usefixtures("in_float64")

HYPER = fedlsa.Hyper(**LOCAL, tau=0.3, alpha=0.4, lam=0.7, server_epochs=6, server_lr=0.2)
I, L = network().feature_size, network().embedding_size  # noqa: E741 - the paper's symbols


def first_parts():
    """Return R and Theta of a server of seed 7, drawn in the same order as in the server."""
    with initialised_from(seeded(7, "server", "anchors").initial_seed()):
        R = torch.randn(CLASSES, I)
        return R.requires_grad_(), nn.Sequential(nn.Linear(I, I), nn.ReLU(), nn.Linear(I, L))


def rows_of_length_1(rows):
    return torch.stack([row / row.square().sum().sqrt() for row in rows])


def fitted(R, Theta, head, hyper):
    """Return the anchors after the steps of one round on L_LSA; the head does not change."""
    W, b = head.weight.detach().clone(), head.bias.detach().clone()
    sgd = torch.optim.SGD([R, *Theta.parameters()], lr=hyper.server_lr)
    for _ in range(hyper.server_epochs):
        a, terms = rows_of_length_1(Theta(R)), []
        for i in range(CLASSES):
            scores = W @ a[i] + b
            near = [torch.exp(a[i] @ a[j] / hyper.tau) for j in range(CLASSES) if j != i]
            separation = torch.log(sum(near) / (CLASSES - 1))
            terms.append(torch.logsumexp(scores, 0) - scores[i] + hyper.alpha * separation)
        sgd.zero_grad()
        (sum(terms) / CLASSES).backward()
        sgd.step()
    return rows_of_length_1(Theta(R)).detach()


def plain(hyper, devices):
    (R, Theta), anchors, begun = first_parts(), None, 0

    def train(model, device, number):
        nonlocal anchors, begun
        # At the first device of a round, its network is the average that all devices receive.
        if number > begun:
            begun = number
            if number > 1 or hyper.anchors_first_round == "pretrain":
                anchors = fitted(R, Theta, model.head, hyper)

        def loss(x, y):
            h = rows_of_length_1(model.embed(x))
            ce = F.cross_entropy(model.head(h), y)
            if anchors is None:
                return ce
            scores = h @ anchors.T / hyper.tau
            own = scores[torch.arange(len(y)), y]
            return ce + hyper.lam * (torch.logsumexp(scores, 1) - own).mean()

        data, order = devices[device], order_of(device, number)
        fit(model, list(model.parameters()), data, hyper.epochs, hyper, order, loss)

    shared, _ = averaged(PRESENT, train, data=devices)
    head = nn.Linear(L, CLASSES)
    head.load_state_dict({"weight": shared["head.weight"], "bias": shared["head.bias"]})
    return shared, fitted(R, Theta, head, hyper)


@pytest.mark.parametrize("devices", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("first", ["pretrain", "skip"])
def test_four_rounds_equal_those_of_a_plain_loop(first, devices):
    hyper = replace(HYPER, anchors_first_round=first)
    server, _ = played(fedlsa, hyper, devices)
    shared, anchors = plain(hyper, devices)
    payload = server.payload()
    assert_close(payload["anchors"], anchors, rtol=1e-8, atol=1e-10)
    for key, value in shared.items():
        assert_close(payload[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
