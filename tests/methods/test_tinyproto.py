"""Tests of TinyProto against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import singleset, tinyproto
from protofleet.methods.contract.base import Member, Reply, seeded
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.maths.masks import owned_dimensions
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.settings.reader import SettingsError
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    check_models,
    fit,
    halves,
    network,
    order_of,
    played,
)
from tests.methods.tiny import CLASSES, floats, normal, play, same

HYPER = tinyproto.Hyper(**LOCAL, least_samples=1, lam=0.7)
D = network().embedding_size
VARIANTS = ({}, {"aps": False}, {"proto_source": "training"}, {"a": 0.02, "ratio": 70.0})


def plain(hyper, data=DATA, rounds=PRESENT):
    models, table = {name: network() for name in data}, {}  # Class -> its row of D numbers.
    owned = owned_dimensions(CLASSES, D, max(1, int(CLASSES * hyper.ratio / 100)), seeded(7, "masks"))
    for number, present in enumerate(rounds, 1):
        sent, before = {}, dict(table)
        for name in present:
            model, part, seen = models[name], data[name], []

            def loss(x, y, model=model, seen=seen, before=before):
                z = model.embed(x)
                seen.extend(zip(z.detach(), y.tolist(), strict=True))
                gaps = [
                    ((row - before[c]) ** 2).mean()
                    for row, c in zip(z, y.tolist(), strict=True)
                    if c in before
                ]
                extra = sum(gaps) / len(gaps) if gaps else 0.0
                return F.cross_entropy(model.head(z), y) + hyper.lam * extra

            fit(model, list(model.parameters()), part, hyper.epochs, hyper, order_of(name, number), loss)
            if hyper.proto_source == "eval":
                with torch.no_grad():
                    seen = list(zip(model.eval().embed(part.x), part.y.tolist(), strict=True))
            for c in set(part.y.tolist()):
                rows = [row for row, label in seen if label == c]
                sent.setdefault(c, []).append((sum(rows) / len(rows), int((part.y == c).sum())))
        samples = sum(len(data[name].y) for name in present)
        for c, pairs in sent.items():
            total = sum(n * mean for mean, n in pairs) * (hyper.a or CLASSES / samples)
            row = total if hyper.aps else sum(mean for mean, _ in pairs) / len(pairs)
            table[c] = torch.zeros(D, dtype=torch.float64)
            table[c][owned[c]] = row[owned[c]]
    return table, models


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
def test_four_rounds_equal_those_of_a_plain_loop(data, variant):
    hyper = replace(HYPER, **variant)
    server, clients = played(tinyproto, hyper, data)
    table, models = plain(hyper, data)
    client = clients["device-1"]
    client.receive(snapshot(server.payload()))
    assert client.known.tolist() == [True, True, data is DATA] == [c in table for c in range(CLASSES)]
    for c, row in table.items():
        assert_close(client.prototypes[c], row, rtol=1e-9, atol=1e-11)
    check_models(clients, models)


def test_the_models_with_lam_0_equal_those_of_singleset():
    _, clients = played(tinyproto, replace(HYPER, lam=0.0))
    _, others = played(singleset, LocalHyper(**LOCAL))
    for name in DATA:
        assert_close(clients[name].model.state_dict(), others[name].model.state_dict(), rtol=0, atol=1e-15)


def test_a_device_sends_only_the_dimensions_that_a_class_owns_and_no_mask():
    server, clients = halves(tinyproto, HYPER)
    sent = play(server, clients, 1)[0]
    assert floats(sent["device-1"]) == {"prototypes": 2 * 2, "labels": 2}
    assert floats(server.payload()) == {"prototypes": 3 * 2, "labels": 3}
    assert all(torch.equal(client.owned, clients["device-0"].owned) for client in clients.values())
    cost = tinyproto.METHOD.cost(Sizes(Net(nn.Flatten(), 512, 10), held=10))
    assert sum(cost.up.values()) == sum(cost.down.values()) == 520
    assert tinyproto.METHOD.needs_counts, "the coordinator learns the label distribution"


def test_the_row_of_a_class_is_scaled_by_its_size_relative_to_the_average():
    means, counts = normal(3, 2), torch.tensor([10, 5, 15])
    found = tinyproto.scaled(means, counts)
    assert_close(found, means * torch.tensor([[1.0], [0.5], [1.5]]).double())
    assert_close(tinyproto.scaled(means, counts, 0.1), means * counts.unsqueeze(1) * 0.1)


def test_a_class_without_senders_keeps_its_row_and_an_unknown_class_is_not_predicted():
    server, clients = halves(tinyproto, HYPER, WITHOUT_2)
    play(server, clients, 1)
    before = server.prototypes.clone()
    play(server, {"device-3": clients["device-3"]}, 2)
    assert torch.equal(server.prototypes[0], before[0]) and not torch.equal(server.prototypes[1], before[1])
    client = clients["device-0"]
    client.receive(snapshot(server.payload()))
    x = DATA["device-0"].x
    scores = client.predict(x)
    assert (scores[:, 2] == -torch.inf).all()
    far = torch.cdist(client.model.embed(x), client.prototypes[:2]).square()
    assert_close(scores[:, :2], -far)
    assert torch.equal(
        client.scores(x, client.other_rules()["classifier"]), client.model.head(client.model.embed(x))
    )


# Hostile devices

GOOD, BAD = Member("good", 6, (4, 2, 0)), Member("hostile", 6, (1, 5, 0))


def after(hyper, *answers, members=(GOOD, BAD)):
    server = tinyproto.METHOD.Server(network(), hyper, 7)
    server.begin(1, members)
    story = server.round()
    ask = next(story)
    replies = [Reply(name, 6, payload(rows, labels)) for name, rows, labels in answers]
    assert all(ask.problem_with(reply.payload, 6) is None for reply in replies)
    with pytest.raises(StopIteration):
        story.send(replies)
    return server


def payload(rows, labels):
    return {"prototypes": torch.tensor(rows, dtype=torch.float64), "labels": torch.tensor(labels)}


HONEST = ("good", [[4.0, 8.0], [2.0, -2.0]], [0, 1])


@pytest.mark.parametrize("aps", [True, False])
@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ([[9.0, 9.0]], [0]),  # With one sample of class 0, the norm may be 10.
        ([[6.0, 0.0], [6.0, 0.0]], [0, 0]),  # Together they are too long, if they are sums.
        ([[1.0, 1.0]], [2]),  # The device has stated no sample of class 2.
    ],
)
def test_a_too_long_row_and_a_row_of_a_class_that_the_device_lacks_are_not_used(rows, labels, aps):
    hyper = replace(HYPER, largest_feature=10.0, aps=aps)
    found = after(hyper, HONEST, ("hostile", rows, labels))
    if not aps and len(rows) == 2:
        assert found.monitor()["rows.refused"] == 0.0, "the mean of both rows is short enough"
        return
    assert found.monitor()["rows.refused"] == 1.0
    assert same(found.state(), after(hyper, HONEST).state())


@pytest.mark.parametrize("aps, most", [(True, 50.0), (False, 10.0)])
def test_a_number_above_the_bound_of_the_largest_class_is_refused(aps, most):
    server = tinyproto.METHOD.Server(network(), replace(HYPER, largest_feature=10.0, aps=aps), 7)
    server.begin(1, [GOOD, BAD])
    ask = next(server.round())
    assert ask.problem_with(payload([[most, 0.0]], [0]), 6) is None
    cases = {
        f"above {most:g}": payload([[most + 0.1, 0.0]], [0]),
        "not finite": payload([[torch.nan, 0.0]], [0]),
        "(1, 3), not ('held', 2)": payload([[1.0, 0.0, 0.0]], [0]),
        "above 2": payload([[1.0, 0.0]], [3]),
    }
    for words, answer in cases.items():
        assert words in ask.problem_with(answer, 6).message


def test_the_order_of_answers_changes_no_bit():
    other = ("hostile", [[0.1, 0.7], [1.3, 1.1]], [0, 1])
    assert same(after(HYPER, HONEST, other).state(), after(HYPER, other, HONEST).state())


def test_a_cap_of_the_weights_also_lowers_the_sums():
    """A coordinator with a cap states half of the samples; then the device counts half, and its mean is the same."""
    capped = replace(GOOD, examples=12, counts=(4, 2, 0))
    sums = ("good", [[8.0, 16.0], [4.0, -4.0]], [0, 1])  # The sums over 8 and 4 samples.
    server = after(HYPER, sums, members=(capped, BAD))
    assert_close(server.prototypes, after(HYPER, HONEST).prototypes)


def test_an_embedding_with_fewer_numbers_than_classes_is_refused_before_the_start():
    with pytest.raises(SettingsError, match=r"has 8 numbers .*; set network.embedding_size to at least 10$"):
        Plan("tinyproto", 10, 3, network=Network("mlp", feature_size=64, embedding_size=8)).demand_fit()
    with pytest.raises(SettingsError, match=r"has 8 numbers .*; set network.feature_size to at least 10$"):
        Plan("tinyproto", 10, 3, network=Network("cnn_bn", feature_size=8)).demand_fit()
    Plan("tinyproto", 8, 3, network=Network("mlp", embedding_size=8)).demand_fit()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ratio": 0.0}, "ratio is 0.0, it must be above 0 and below 100"),
        ({"ratio": 100.0}, "ratio is 100.0, it must be above 0 and below 100"),
        ({"a": 0.0}, "a is 0.0, it must be above 0"),
        ({"largest_feature": 0.0}, "largest_feature is 0.0, it must be above 0"),
        ({"inference": "head"}, "inference is 'head', it must be one of prototype, classifier"),
        ({"proto_source": "last"}, "proto_source is 'last', it must be one of training, eval"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
