"""Tests of FedTGP against a plain loop and values computed by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedtgp
from protofleet.methods.contract.base import Reply, seeded
from protofleet.methods.maths.geometry import margins
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, WITHOUT_2, fit, halves, network, order_of, played
from tests.methods.test_oracles import case, check
from tests.methods.tiny import CLASSES, play, same

HYPER = fedtgp.Hyper(**LOCAL, lam=3.0, server_epochs=7, server_batch=4, server_lr=0.05)
D = network().embedding_size


def first_parts():
    """Return the first rows and layers of a server of seed 7, drawn in the same order as in the server."""
    with initialised_from(7):
        rows = torch.randn(CLASSES, D)
        layers = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
    return rows.double().requires_grad_(), layers.double()


def plain(hyper, devices=DATA, rounds=PRESENT):
    models, (rows, layers), known = {name: network() for name in devices}, first_parts(), set()
    for number, present in enumerate(rounds, 1):
        table = layers(rows).detach().clone()
        sent = []
        for name in sorted(present):
            model, data, seen = models[name], devices[name], []

            def loss(x, y, model=model, table=table, seen=seen):
                z = model.embed(x)
                seen.extend(zip(z.detach(), y.tolist(), strict=True))
                held = [i for i, label in enumerate(y.tolist()) if label in known]
                extra = (z[held] - table[y[held]]).square().mean() if held else 0.0
                return F.cross_entropy(model.head(z), y) + hyper.lam * extra

            fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(name, number), loss)
            seen = seen[-len(data.y) :]  # Only samples of the last epoch count.
            if hyper.proto_source == "eval":
                with torch.no_grad():
                    seen = list(zip(model.eval().embed(data.x), data.y.tolist(), strict=True))
            for label in sorted(set(data.y.tolist())):
                sent.append((torch.stack([z for z, y in seen if y == label]).mean(0), label))
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


def check_against_a_plain_loop(hyper, devices=DATA, rounds=PRESENT):
    server, clients = played(fedtgp, hyper, devices, rounds)
    table, known, models = plain(hyper, devices, rounds)
    payload = server.payload()
    assert payload["labels"].tolist() == sorted(known)
    assert_close(payload["prototypes"], table[payload["labels"]], rtol=1e-8, atol=1e-10)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-8, atol=1e-10)
    return payload


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("source", ["training", "eval"])
@pytest.mark.parametrize("margin", ["nearest", "farthest"])
def test_four_rounds_equal_those_of_a_plain_loop(margin, source, data):
    payload = check_against_a_plain_loop(replace(HYPER, margin=margin, proto_source=source), data)
    assert payload["labels"].tolist() == ([0, 1, 2] if data is DATA else [0, 1])


def test_rounds_with_a_single_class_use_the_margin_limit():
    limits = (fedtgp.Hyper().margin_limit, 1.0)
    found = [
        check_against_a_plain_loop(replace(HYPER, margin_limit=limit), rounds=[("device-3",)] * 2)
        for limit in limits
    ]
    assert all(payload["labels"].tolist() == [1] for payload in found)
    assert not same(*found), "the limit must change the result"


def test_rounds_with_a_small_margin_limit_equal_those_of_a_plain_loop():
    found = [check_against_a_plain_loop(replace(HYPER, margin_limit=limit)) for limit in (0.01, 100.0)]
    assert not same(*found), "the limit must change the result"


def test_the_margin_and_the_loss_equal_the_oracle():
    given, expected = case("fedtgp.server")
    Q, p, y = given["class_mean_of_client_prototypes"], given["client_prototypes"], given["classes"]
    margin = fedtgp.margin_between(Q, replace(HYPER, margin_limit=given["threshold"]))
    rows = [fedtgp.contrast(p[[i]], y[[i]], given["trainable"], margin) for i in range(len(y))]
    check(
        expected,
        gap=margins(Q),
        margin=torch.tensor(margin, dtype=torch.float64),
        per_prototype=torch.stack(rows),
        loss=fedtgp.contrast(p, y, given["trainable"], margin),
    )


def test_a_class_that_no_device_ever_held_is_not_sent_and_never_predicted():
    server, clients = halves(fedtgp, HYPER)
    only = {name: clients[name] for name in ("device-1", "device-3")}  # They hold classes 0 and 1.
    play(server, only, 1)
    assert server.payload()["labels"].tolist() == [0, 1]
    client = clients["device-0"]
    client.receive(snapshot(server.payload()))
    assert not (client.predict(client.data.x).argmax(1) == 2).any()


def test_the_margin_is_the_distance_between_classes_up_to_the_margin_limit():
    Q = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    assert fedtgp.nearest_others(Q) == pytest.approx(5.0) and fedtgp.farthest_others(Q) == pytest.approx(
        34**0.5
    )
    assert fedtgp.nearest_others(Q[:1]) == fedtgp.farthest_others(Q[:1]) == math.inf
    for margin, apart in (("nearest", 5.0), ("farthest", 34**0.5)):
        limits = {limit: replace(HYPER, margin=margin, margin_limit=limit) for limit in (100.0, 4.0)}
        found = {limit: fedtgp.margin_between(Q, hyper) for limit, hyper in limits.items()}
        assert found == {100.0: pytest.approx(apart), 4.0: 4.0}
        assert [fedtgp.margin_between(Q[:1], hyper) for hyper in limits.values()] == [*limits]


def test_pairs_have_the_order_of_devices_and_classes_for_any_order_of_answers():
    replies = [sent_by("b", [[2.0], [1.0]], [2, 0], [1, 2]), sent_by("a", [[9.0]], [1], [3])]
    rows, labels = fedtgp.pairs(replies, CLASSES)
    assert rows.tolist() == [[9.0], [1.0], [2.0]] and labels.tolist() == [1, 0, 2]
    again = fedtgp.pairs(replies[::-1], CLASSES)
    assert all(torch.equal(a, b) for a, b in zip(again, (rows, labels), strict=True))


def sent_by(device, rows, labels, counts):
    payload = {
        "prototypes": torch.tensor(rows),
        "labels": torch.tensor(labels),
        "counts": torch.tensor(counts),
    }
    return Reply(device, sum(counts), payload)


def test_several_rows_of_one_class_from_one_device_count_once():
    other = sent_by("b", [[0.0, 3.0], [4.0, 0.0]], [1, 0], [4, 5])
    rows = [[1.0, 0.0], [2.0, 5.0], [5.0, 4.0]]
    twice = fedtgp.pairs([other, sent_by("a", rows, [0, 2, 0], [1, 2, 3])], CLASSES)
    once = fedtgp.pairs([other, sent_by("a", [[4.0, 3.0], [2.0, 5.0]], [0, 2], [4, 2])], CLASSES)
    assert all(torch.equal(a, b) for a, b in zip(twice, once, strict=True))
    assert once[1].tolist() == [0, 2, 0, 1]
    Q = fedtgp.means_of(*twice, CLASSES)
    assert Q.tolist() == [[4.0, 1.5], [0.0, 3.0], [2.0, 5.0]], "the row of class 0 is the mean of two devices"


def test_a_restored_server_has_the_same_rows_and_layers():
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
    none = torch.zeros(0, dtype=torch.int64)
    nothing = {"prototypes": torch.zeros(0, D).double(), "labels": none, "counts": none}
    with pytest.raises(StopIteration):
        story.send([Reply("a", 0, nothing)])
    assert same(server.state(), before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"margin": "mean"}, "margin is 'mean', it must be one of nearest, farthest"),
        ({"margin_limit": -1.0}, "margin_limit is -1.0, it must be at least 0"),
        ({"inference": "head"}, "inference is 'head', it must be one of prototype, classifier"),
        ({"proto_source": "last"}, "proto_source is 'last', it must be one of training, eval"),
        ({"server_epochs": 0}, "server_epochs is 0, it must be at least 1"),
        ({"server_batch": 0}, "server_batch is 0, it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
