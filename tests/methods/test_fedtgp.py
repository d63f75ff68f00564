"""FedTGP, beside a plain loop and by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedtgp
from protofleet.methods.contract.base import Reply, seeded
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, halves, network, order_of, played
from tests.methods.tiny import CLASSES, play, same

HYPER = fedtgp.Hyper(**LOCAL, lam=3.0, server_epochs=7, server_batch=4, server_lr=0.05)
D = network().embedding_size


def first_parts():
    """The rows and layers that a server of seed 7 begins with, in the order in which it draws them."""
    with initialised_from(7):
        rows = torch.randn(CLASSES, D)
        layers = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
    return rows.double().requires_grad_(), layers.double()


def plain(hyper):
    models, (rows, layers), known = {name: network() for name in DATA}, first_parts(), set()
    for number, present in enumerate(PRESENT, 1):
        table = layers(rows).detach().clone()
        sent = []
        for name in sorted(present):
            model, data = models[name], DATA[name]

            def loss(x, y, model=model, table=table):
                z = model.embed(x)
                held = [i for i, label in enumerate(y.tolist()) if label in known]
                extra = (z[held] - table[y[held]]).square().mean() if held else 0.0
                return F.cross_entropy(model.head(z), y) + hyper.lam * extra

            fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(name, number), loss)
            with torch.no_grad():
                z = model.eval().embed(data.x)
            sent += [(z[data.y == label].mean(0), label) for label in sorted(set(data.y.tolist()))]
        teach(rows, layers, sent, hyper, seeded(7, number, "server", "train"))
        known |= {label for _, label in sent}
    return layers(rows).detach(), known, models


def teach(rows, layers, sent, hyper, order):
    by_class = {
        label: torch.stack([p for p, y in sent if y == label]).mean(0) for label in {y for _, y in sent}
    }
    far = [
        [float((a - b).norm()) for key, b in by_class.items() if key != own] for own, a in by_class.items()
    ]
    margin = hyper.margin_limit
    if len(by_class) > 1:
        spread = max(map(min, far)) if hyper.margin == "nearest" else max(map(max, far))
        margin = min(spread, hyper.margin_limit)
    p, y = torch.stack([p for p, _ in sent]), torch.tensor([y for _, y in sent])
    sgd = torch.optim.SGD([rows, *layers.parameters()], lr=hyper.server_lr)
    for _ in range(hyper.server_epochs):
        for batch in torch.randperm(len(y), generator=order).split(hyper.server_batch):
            table = layers(rows)
            losses = []
            for one, label in zip(p[batch], y[batch].tolist(), strict=True):
                scores = [-((one - row).square().sum() + 1e-12).sqrt() for row in table]
                scores[label] = scores[label] - margin
                losses.append(torch.logsumexp(torch.stack(scores), 0) - scores[label])
            sgd.zero_grad()
            torch.stack(losses).mean().backward()
            sgd.step()


@pytest.mark.parametrize("margin", ["nearest", "farthest"])
def test_four_rounds_are_those_of_a_plain_loop(margin):
    hyper = replace(HYPER, margin=margin)
    server, clients = played(fedtgp, hyper)
    table, known, models = plain(hyper)
    payload = server.payload()
    assert payload["labels"].tolist() == sorted(known)
    assert_close(payload["prototypes"], table[payload["labels"]], rtol=1e-8, atol=1e-10)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-8, atol=1e-10)


def test_a_class_that_nobody_has_ever_held_stays_on_the_server_and_is_never_predicted():
    server, clients = halves(fedtgp, HYPER)
    only = {name: clients[name] for name in ("device-1", "device-3")}  # classes 0 and 1
    play(server, only, 1)
    assert server.payload()["labels"].tolist() == [0, 1]
    client = clients["device-0"]
    client.receive(snapshot(server.payload()))
    assert not (client.predict(client.data.x).argmax(1) == 2).any()


def test_with_one_class_the_margin_is_its_limit_and_with_several_how_far_they_lie_apart():
    Q = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    assert fedtgp.nearest_others(Q) == pytest.approx(5.0) and fedtgp.farthest_others(Q) == pytest.approx(
        34**0.5
    )
    assert fedtgp.nearest_others(Q[:1]) == fedtgp.farthest_others(Q[:1]) == math.inf


def test_pairs_are_in_the_order_of_devices_and_classes_however_they_come():
    replies = [
        Reply("b", 3, {"prototypes": torch.tensor([[2.0], [1.0]]), "labels": torch.tensor([2, 0])}),
        Reply("a", 3, {"prototypes": torch.tensor([[9.0]]), "labels": torch.tensor([1])}),
    ]
    rows, labels = fedtgp.pairs(replies)
    assert rows.tolist() == [[9.0], [1.0], [2.0]] and labels.tolist() == [1, 0, 2]
    assert all(torch.equal(a, b) for a, b in zip(fedtgp.pairs(replies[::-1]), (rows, labels), strict=True))


def test_a_server_that_starts_again_goes_on_from_its_rows_and_layers():
    server, _ = played(fedtgp, HYPER)
    again = fedtgp.METHOD.Server(network(), HYPER, 7)
    again.restore(snapshot(server.state()))
    assert same(again.payload(), server.payload()) and same(again.state(), server.state())


def test_a_round_without_a_row_changes_nothing():
    server, _ = halves(fedtgp, HYPER)
    before = snapshot(server.state())
    server.begin(1, [])
    story = server.round()
    next(story)
    nothing = {"prototypes": torch.zeros(0, D).double(), "labels": torch.zeros(0, dtype=torch.int64)}
    with pytest.raises(StopIteration):
        story.send([Reply("a", 0, nothing)])
    assert same(server.state(), before)
