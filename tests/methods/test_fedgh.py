"""Tests of FedGH against a plain loop and values computed by hand."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedgh
from protofleet.methods.contract.base import Reply, seeded
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.nets.base import Net
from protofleet.methods.nets.mlp import fedpall_classifier
from protofleet.methods.parts.state import snapshot
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
from tests.methods.tiny import floats, play, same, server_of, tiny

HYPER = fedgh.Hyper(**LOCAL, least_samples=1, server_epochs=6, server_lr=0.1, server_batch=3)
TWO = ("device-1", "device-3")  # They hold the classes 0 and 1.


def plain(hyper, data=DATA, rounds=PRESENT):
    models, head, last = {name: network() for name in data}, network().head, {}
    for number, present in enumerate(rounds, 1):
        last = last if hyper.replay else {}
        for name in present:
            model, part = models[name], data[name]
            model.head.load_state_dict(head.state_dict())

            def loss(x, y, model=model):
                return F.cross_entropy(model(x), y)

            fit(model, list(model.parameters()), part, hyper.epochs, hyper, order_of(name, number), loss)
            with torch.no_grad():
                z = model.eval().embed(part.x)
            labels = sorted(set(part.y.tolist()))
            last[name] = [(sum(z[part.y == c]) / (part.y == c).sum(), c) for c in labels]
        teach(head, [pair for name in sorted(last) for pair in last[name]], hyper, number)
    return head, models


def teach(head, pairs, hyper, number):
    order = seeded(7, number, "server", "head")
    torch.randint(1 << 62, (), generator=order)  # Draws the seed of random layers; this head has none.
    sgd = torch.optim.SGD(head.parameters(), lr=hyper.server_lr)
    for _ in range(hyper.server_epochs):
        for batch in torch.randperm(len(pairs), generator=order).split(hyper.server_batch):
            rows, labels = zip(*(pairs[i] for i in batch.tolist()), strict=True)
            sgd.zero_grad()
            F.cross_entropy(head(torch.stack(rows)), torch.tensor(labels)).backward()
            sgd.step()


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("replay", [True, False])
def test_four_rounds_equal_those_of_a_plain_loop(replay, data):
    hyper = replace(HYPER, replay=replay)
    server, clients = played(fedgh, hyper, data)
    head, models = plain(hyper, data)
    for key, value in head.state_dict().items():
        assert_close(server.payload()[f"weights.head.{key}"], value, rtol=1e-9, atol=1e-11)
    check_models(clients, models)


def test_devices_send_only_class_means_and_the_server_sends_only_the_head():
    assert fedgh.METHOD.mixed_networks and fedgh.METHOD.alike == "head"
    server, nets = halves(fedgh, HYPER)[0], [tiny(i, norm=i == 1).double() for i in range(2)]
    clients = {n: fedgh.METHOD.Client(net, DATA[n], HYPER, 7, n) for n, net in zip(TWO, nets, strict=True)}
    sent = play(server, clients, 1)[0]
    assert floats(sent["device-1"]) == {"prototypes": 2 * 6, "labels": 2}
    assert floats(sent["device-3"]) == {"prototypes": 6, "labels": 1}
    assert floats(server.payload()) == {"weights": 6 * 3 + 3}
    cost = fedgh.cost(Sizes(Net(nn.Flatten(), 512, 10), held=10))
    assert sum(cost.up.values()) == sum(cost.down.values()) == 5_130


def test_a_device_predicts_with_the_received_head_on_its_own_network():
    server, clients = played(fedgh, HYPER)
    client = clients["device-0"]
    client.model.eval()
    own = snapshot(client.model.features.state_dict())
    client.receive(snapshot(server.payload()))
    x = client.data.x
    assert torch.equal(client.predict(x), server.model.head(client.model.embed(x)))
    assert same(own, client.model.features.state_dict())
    assert not any("head" in name for name in client.state())


def test_replay_keeps_the_score_of_a_class_that_the_cohort_lacks():
    found = {}
    for replay in (True, False):
        server, clients = halves(fedgh, replace(HYPER, replay=replay))
        play(server, clients, 1)
        before = server.model.head.bias[2].item()
        play(server, {name: clients[name] for name in TWO}, 2)
        found[replay] = server.model.head.bias[2].item() - before
    assert found[False] < -0.1 and found[True] > found[False] / 2


def sent_by(device, rows, labels):
    return Reply(device, 9, {"prototypes": rows, "labels": torch.tensor(labels)})


def after(replies, server=None):
    server = server or halves(fedgh, HYPER)[0]
    server.begin(1, [])
    story = server.round()
    next(story)
    with pytest.raises(StopIteration):
        story.send(replies)
    return server


def test_the_order_of_answers_and_repeated_labels_change_no_bit():
    rows = torch.arange(24).double().view(4, 6) / 9
    one, other = sent_by("a", rows[:2], [2, 0]), sent_by("b", rows[2:], [1, 0])
    twice = sent_by("a", rows[[0, 1, 0]], [2, 0, 2])
    states = [after(replies).state() for replies in ([one, other], [other, one], [other, twice])]
    assert same(states[0], states[1]) and same(states[0], states[2])


def test_a_restored_server_has_the_last_rows_of_each_device():
    server, _ = played(fedgh, HYPER)
    again = fedgh.METHOD.Server(network(), HYPER, 7)
    again.restore(snapshot(server.state()))
    assert same(again.state(), server.state()) and len(again.last.rows().y) == 3 + 2 + 2 + 1


@pytest.mark.parametrize("deep", [False, True])
def test_rows_at_their_bounds_leave_a_finite_head(deep):
    model = tiny()
    if deep:
        model.head = fedpall_classifier(6, 3, seed=3)
    server = fedgh.METHOD.Server(model, replace(HYPER, server_lr=1000.0, server_epochs=40), 7)
    rows = torch.tensor([[1e6] * 6, [-1e6] * 6])
    after([sent_by(name, rows, [label, 1]) for name, label in (("a", 0), ("b", 2))], server)
    assert all(value.isfinite().all() for value in server.state().values() if value.is_floating_point())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prototypes": torch.full((2, 6), 1.1e6)}, "above 1e\\+06"),
        ({"prototypes": torch.full((2, 6), float("nan"))}, "not finite"),
        ({"prototypes": torch.zeros(2, 5)}, "not \\('held', 6\\)"),
        ({"labels": torch.tensor([0, 3])}, "above 2"),
        ({"prototypes": torch.zeros(3, 6), "labels": torch.tensor([0, 1, 2])}, "3 rows, of a device with 2"),
    ],
)
def test_a_hostile_answer_is_refused(change, words):
    server = server_of(fedgh.METHOD, HYPER)
    server.begin(1, [])
    ask = next(server.round())
    good = {"prototypes": torch.zeros(2, 6), "labels": torch.tensor([0, 1])}
    assert ask.problem_with(good, 2) is None
    assert re.search(words, ask.problem_with({**good, **change}, 2).message)


def test_a_mean_of_too_few_samples_is_not_sent():
    _, clients = halves(fedgh, replace(HYPER, least_samples=3))
    server = fedgh.METHOD.Server(network(), HYPER, 7)
    assert play(server, {"device-2": clients["device-2"]}, 1)[0]["device-2"]["labels"].tolist() == [2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"server_epochs": 0}, "server_epochs is 0, it must be at least 1"),
        ({"server_lr": 0.0}, "server_lr is 0.0, it must be above 0"),
        ({"server_batch": 0}, "server_batch is 0, it must be at least 1"),
        ({"least_samples": 0}, "least_samples is 0, it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
