"""Tests of FedProto's halves by direct calls: which rows devices send, and how rows change a device."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedproto
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.parts.local import embed
from protofleet.methods.parts.prototypes import class_means_in
from tests.methods.tiny import CLASSES, clients_of, floats, normal, play, server_of

LOCAL = {"epochs": 2, "batch": 8, "lr": 0.05}


def halves():
    hyper = fedproto.Hyper(**LOCAL)
    return server_of(fedproto.METHOD, hyper), clients_of(fedproto.METHOD, hyper)


def test_a_device_sends_rows_of_its_classes_and_receives_rows_of_the_known_classes():
    server, clients = halves()
    assert server.payload() == {}
    up = play(server, {"device-1": clients["device-1"]}, 1)[0]["device-1"]
    assert floats(up) == {"prototypes": 2 * 6, "labels": 2, "counts": 2}
    assert up["labels"].tolist() == [0, 1] and up["counts"].tolist() == [9, 9]
    assert floats(server.payload()) == {"prototypes": 2 * 6, "labels": 2}
    play(server, clients, 2)
    assert floats(server.payload()) == {"prototypes": 3 * 6, "labels": 3}


def test_the_default_prototypes_are_class_means_of_features_during_the_last_epoch():
    client = clients_of(fedproto.METHOD, fedproto.Hyper(epochs=3, batch=8, lr=0.05))["device-2"]
    seen = []
    objective = client.objective
    client.objective = lambda x, y: seen.append((client.model.embed(x).detach(), y)) or objective(x, y)
    sent = client.run(Ask("train"))
    z, y = (torch.cat(parts) for parts in zip(*seen[-1:], strict=True))  # 7 samples: an epoch is one batch
    assert len(seen) == 3 and sent["labels"].tolist() == [0, 2]
    for row, label in zip(sent["prototypes"], (0, 2), strict=True):
        assert_close(row, z[y == label].mean(dim=0))


def test_the_prototypes_of_the_source_eval_are_class_means_after_training():
    client = clients_of(fedproto.METHOD, fedproto.Hyper(**LOCAL, proto_source="eval"), norm=True)["device-0"]
    sent = client.run(Ask("train"))
    z = embed(client.model, client.data.x)
    for row, label in zip(sent["prototypes"], range(3), strict=True):
        assert_close(row, z[client.data.y == label].mean(dim=0))


def sent_by(device, rows, labels, counts):
    payload = {"prototypes": rows, "labels": torch.tensor(labels), "counts": torch.tensor(counts)}
    return Reply(device, sum(counts), payload)


@pytest.mark.parametrize("aggregation, shares", [("unweighted", (1, 1)), ("weighted", (30, 10))])
def test_a_global_prototype_is_the_mean_over_the_devices_that_hold_the_class(aggregation, shares):
    server = server_of(fedproto.METHOD, fedproto.Hyper(aggregation=aggregation))
    a, b = normal(2, 6, dtype=torch.float32), normal(1, 6, seed=1, dtype=torch.float32)
    story = server.round()
    next(story)
    with pytest.raises(StopIteration):
        story.send([sent_by("a", a, [0, 1], [30, 2]), sent_by("b", b, [0], [10])])
    assert server.known.tolist() == [True, True, False]
    assert_close(server.prototypes[0], (shares[0] * a[0] + shares[1] * b[0]) / sum(shares))
    assert_close(server.prototypes[1], a[1])


def test_a_class_that_no_device_holds_keeps_its_row():
    server, clients = halves()
    play(server, clients, 1)
    before = server.prototypes.clone()
    play(server, {"device-1": clients["device-1"]}, 2)
    assert torch.equal(server.prototypes[2], before[2]) and not torch.equal(server.prototypes[0], before[0])
    assert server.known.all()


def test_several_rows_of_one_class_from_one_device_are_pooled():
    server = server_of(fedproto.METHOD, fedproto.Hyper())
    rows = normal(3, 6, dtype=torch.float32)
    found, counts = class_means_in(sent_by("a", rows, [1, 1, 0], [1, 3, 5]).payload, server.model.classes)
    assert_close(found[1], (rows[0] + 3 * rows[1]) / 4)
    assert counts.tolist() == [5, 4, 0]


@pytest.mark.parametrize("labels", [(0, 1, 2), (0, 2)])
def test_the_loss_has_the_distance_to_the_known_prototypes(labels):
    client = clients_of(fedproto.METHOD, fedproto.Hyper(lam=2.0))["device-0"]
    x, y, model = client.data.x, client.data.y, client.model
    assert_close(client.objective(x, y), F.cross_entropy(model(x), y))
    rows = normal(3, 6, dtype=torch.float32)[: len(labels)]
    client.receive({"prototypes": rows, "labels": torch.tensor(labels)})
    own = dict(zip(labels, rows, strict=True))
    gaps = [(z - own[int(c)]) ** 2 for z, c in zip(model.embed(x), y, strict=True) if int(c) in own]
    assert_close(client.objective(x, y), F.cross_entropy(model(x), y) + 2.0 * torch.stack(gaps).mean())


def test_a_device_predicts_the_class_of_the_nearest_known_prototype():
    client = clients_of(fedproto.METHOD, fedproto.Hyper())["device-0"]
    x = client.data.x
    assert torch.equal(client.predict(x), client.model(x))  # There are no prototypes yet.
    rows = client.model.embed(x[[0, 2]]).detach()  # Rows of class 0 and class 2.
    client.receive({"prototypes": rows, "labels": torch.tensor([0, 2])})
    scores = client.predict(x)
    assert_close(scores[:, [0, 2]], -torch.cdist(client.model.embed(x), rows).square(), rtol=1e-4, atol=1e-4)
    assert (scores[:, 1] == -math.inf).all() and scores[[0, 2]].argmax(1).tolist() == [0, 2]
    client.hyper = replace(client.hyper, inference="classifier")
    assert torch.equal(client.predict(x), client.model(x))


def test_a_device_keeps_its_prototypes_when_it_receives_an_empty_payload():
    client = clients_of(fedproto.METHOD, fedproto.Hyper())["device-0"]
    client.receive({"prototypes": normal(1, 6, dtype=torch.float32), "labels": torch.tensor([1])})
    client.receive({})
    assert client.known.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: fedproto.Hyper(lam=math.nan), "lam is nan, it must be at least 0"),
        (
            lambda: fedproto.Hyper(aggregation="mean"),
            "aggregation is 'mean', it must be one of unweighted, weighted",
        ),
        (lambda: fedproto.Hyper(proto_source=""), "proto_source is '', it must be one of training, eval"),
        (
            lambda: fedproto.Hyper(inference="head"),
            "inference is 'head', it must be one of prototype, classifier",
        ),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(make, problem):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(("inference", "other"), [("prototype", "classifier"), ("classifier", "prototype")])
def test_the_other_rule_of_a_device_is_the_other_inference(inference, other):
    one, two = (
        clients_of(fedproto.METHOD, fedproto.Hyper(inference=which))["device-0"]
        for which in (inference, other)
    )
    table = {"prototypes": normal(CLASSES, 6).float(), "labels": torch.arange(CLASSES)}
    for client in (one, two):
        client.receive(table)
    x = one.data.x
    assert list(one.other_rules()) == [other] and torch.equal(
        one.scores(x, one.other_rules()[other]), two.predict(x)
    )
    assert not torch.equal(one.predict(x), two.predict(x))
