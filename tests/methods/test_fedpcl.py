"""Tests of FedPCL against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedpcl
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.maths.contrast import contrast_with_sets
from protofleet.methods.nets.base import Net
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
from tests.methods.tiny import Shard, floats, normal, play, same, server_of, tiny

HYPER = fedpcl.Hyper(**LOCAL, least_samples=1, tau=0.2)


def unit(row):
    return row / row.square().sum().sqrt()


def term(z, y, rows, tau):
    """Return the mean cross-entropy over the samples whose class has a row; `rows` maps classes to rows."""
    losses = []
    for one, label in zip(z, y.tolist(), strict=True):
        if label in rows:
            scores = {c: (unit(one) * unit(row)).sum() / tau for c, row in rows.items()}
            losses.append(torch.stack(list(scores.values())).exp().sum().log() - scores[label])
    return sum(losses) / len(losses) if losses else 0.0 * z.sum()


def joint(sets):
    """Return the global row of each class, in which every device counts once."""
    labels = sorted({label for rows in sets.values() for label in rows})
    found = {c: [rows[c] for rows in sets.values() if c in rows] for c in labels}
    return {c: unit(sum(rows) / len(rows)) for c, rows in found.items()}


def plain(hyper, data=DATA, rounds=PRESENT):
    models, sets = {name: network() for name in data}, {}
    for number, present in enumerate(rounds, 1):
        received, world = dict(sets), joint(sets)
        for name in present:
            model, part = models[name], data[name]

            def loss(x, y, model=model, received=received, world=world):
                z = model.embed(x)
                own = [term(z, y, rows, hyper.tau) for rows in received.values()]
                return term(z, y, world, hyper.tau) + sum(own) / len(own)

            if received:
                below = [w for key, w in model.named_parameters() if not key.startswith("head.")]
                fit(model, below, part, hyper.epochs, hyper, order_of(name, number), loss)
            with torch.no_grad():
                z = [unit(row) for row in model.eval().embed(part.x)]
            held = {c: [row for row, y in zip(z, part.y.tolist(), strict=True) if y == c] for c in range(3)}
            sets[name] = {c: unit(sum(rows) / len(rows)) for c, rows in held.items() if rows}
    return sets, models


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
def test_four_rounds_equal_those_of_a_plain_loop(data):
    server, clients = played(fedpcl, HYPER, data)
    sets, models = plain(HYPER, data)
    payload, world = server.payload(), joint(sets)
    assert payload["labels"].tolist() == sorted(world) == ([0, 1, 2] if data is DATA else [0, 1])
    assert_close(payload["prototypes"], torch.stack([world[c] for c in sorted(world)]), rtol=1e-9, atol=1e-11)
    rows = [sets[name][c] for name in sorted(sets) for c in sorted(sets[name])]
    assert_close(server.sets()["sets"], torch.stack(rows), rtol=1e-9, atol=1e-11)
    assert server.sets()["held"].tolist() == [[c in sets[name] for c in range(3)] for name in sorted(sets)]
    check_models(clients, models)


def test_the_loss_equals_that_of_plain_loops_and_has_a_finite_gradient():
    held = torch.tensor([[True, False, True], [False, True, False], [True, True, True], [False, False, True]])
    rows, y = normal(7, 5, seed=1), torch.tensor([0, 1, 1, 0])
    z = normal(4, 5).requires_grad_()
    found = contrast_with_sets(z, y, rows, held, 0.07)
    sets = [dict(zip(mask.nonzero()[:, 0].tolist(), part, strict=True))
            for mask, part in zip(held, rows.split(held.sum(1).tolist()), strict=True)]  # fmt: skip
    assert_close(found, torch.stack([term(z, y, one, 0.07) for one in sets]), rtol=1e-9, atol=1e-12)
    assert found[3] == 0.0, "no sample has a class of this set"
    found.sum().backward()
    assert z.grad.isfinite().all() and z.grad.any()


def test_round_1_only_collects_rows_and_a_later_round_trains():
    server, clients = halves(fedpcl, HYPER)
    play(server, clients, 1)
    first = network().state_dict()
    assert all(same(client.model.state_dict(), first) for client in clients.values())
    play(server, clients, 2)
    moved = [
        key
        for key, value in clients["device-0"].model.state_dict().items()
        if not torch.equal(value, first[key])
    ]
    assert moved and not any(key.startswith("head.") for key in moved)


def test_each_device_receives_the_rows_of_all_devices_also_of_absent_ones():
    server, clients = halves(fedpcl, HYPER)
    sent = play(server, clients, 1)[0]
    play(server, {"device-3": clients["device-3"]}, 2)
    server.begin(3, [])
    ask = next(server.round())
    assert ask.payload["held"].tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 1, 0]]
    for place, name in ((0, "device-0"), (3, "device-1"), (5, "device-2")):
        rows = sent[name]["prototypes"]
        assert_close(ask.payload["sets"][place : place + len(rows)], rows)
    assert set(server.payload()) == {"prototypes", "labels"}, "a prediction needs no rows of single devices"


def test_the_rows_do_not_depend_on_the_order_of_the_samples():
    part = DATA["device-2"]
    orders = part, Shard(part.x.flip(0), part.y.flip(0))
    one, other = (fedpcl.METHOD.Client(network(), data, HYPER, 7, "a").run(Ask("train")) for data in orders)
    assert one["labels"].tolist() == [0, 2]
    assert_close(one, other)


def test_a_device_predicts_the_class_of_its_own_nearest_row():
    server, clients = played(fedpcl, HYPER)
    client = clients["device-1"]
    client.receive(snapshot(server.payload()))
    x = DATA["device-0"].x
    client.model.eval()
    z = client.model.embed(x)
    cosines = F.normalize(z, dim=1) @ client.own.T
    scores = client.predict(x)
    assert_close(scores[:, :2], cosines[:, :2])
    assert (scores[:, 2] == -torch.inf).all() and client.held.tolist() == [True, True, False]
    other = client.scores(x, client.other_rules()["prototype"])
    assert_close(other, F.normalize(z, dim=1) @ server.payload()["prototypes"].T)


def test_a_device_without_own_rows_predicts_by_the_global_rows():
    server, _ = played(fedpcl, HYPER, WITHOUT_2)
    late = fedpcl.METHOD.Client(network().eval(), DATA["device-0"], HYPER, 7, "late")
    assert torch.equal(late.predict(DATA["device-0"].x), late.model(DATA["device-0"].x))
    late.receive(snapshot(server.payload()))
    scores = late.predict(DATA["device-0"].x)
    assert (scores[:, 2] == -torch.inf).all() and scores[:, :2].isfinite().all()


def test_the_sent_numbers_equal_the_closed_form():
    sizes = Sizes(Net(nn.Flatten(), 512, 10), held=10, clients=6)
    cost = fedpcl.cost(sizes)
    assert sum(cost.up.values()) == 5_130 and sum(cost.down.values()) == 35_910
    assert fedpcl.cost(replace(sizes, first_round=True)).down == {}
    server = server_of(fedpcl.METHOD, HYPER)
    clients = {n: fedpcl.METHOD.Client(tiny(i), replace(DATA[n], x=DATA[n].x.float()), HYPER, 7, n)
               for i, n in enumerate(("device-1", "device-3"))}  # fmt: skip
    assert floats(play(server, clients, 1)[0]["device-1"]) == {"prototypes": 2 * 6, "labels": 2}
    assert floats({**server.payload(), **server.sets()}) == {
        "prototypes": 2 * 6, "labels": 2, "sets": 3 * 6, "held": 2 * 3,
    }  # fmt: skip


def after(*replies):
    server = halves(fedpcl, HYPER)[0]
    server.begin(1, [])
    story = server.round()
    next(story)
    with pytest.raises(StopIteration):
        story.send(replies)
    return server


def sent_by(device, rows, labels):
    return Reply(device, 9, {"prototypes": rows, "labels": torch.tensor(labels)})


def test_the_order_of_answers_and_the_length_and_number_of_rows_have_no_effect():
    rows = normal(3, 6)
    one, other = sent_by("a", rows[:2], [2, 0]), sent_by("b", rows[2:], [0])
    assert same(after(one, other).state(), after(other, one).state())
    long = sent_by("a", torch.cat([rows[:2], rows[:1]]) * 7, [2, 0, 2])
    assert_close(after(long, other).payload(), after(one, other).payload())


def test_a_restored_server_and_a_restored_device_have_the_same_state():
    server, clients = played(fedpcl, HYPER)
    again, client = fedpcl.METHOD.Server(network(), HYPER, 7), clients["device-1"]
    again.restore(snapshot(server.state()))
    other = fedpcl.METHOD.Client(network(), DATA["device-1"], HYPER, 7, "device-1")
    other.restore(snapshot(client.state()))
    assert same(again.state(), server.state()) and same(again.sets(), server.sets())
    assert same(other.state(), client.state())
    assert torch.equal(
        other.model.eval().embed(DATA["device-1"].x), client.model.eval().embed(DATA["device-1"].x)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prototypes": torch.full((2, 6), 2.1)}, "prototypes has 2.1, above 2"),
        ({"prototypes": torch.full((2, 6), torch.inf)}, "prototypes is not finite"),
        ({"labels": torch.tensor([-1, 0])}, "labels has -1, below 0"),
        (
            {"prototypes": torch.zeros(3, 6), "labels": torch.tensor([0, 1, 2])},
            "3 rows, of a device with 2 examples",
        ),
    ],
)
def test_a_hostile_answer_is_refused(change, words):
    server = server_of(fedpcl.METHOD, HYPER)
    server.begin(1, [])
    ask = next(server.round())
    good = {"prototypes": torch.ones(2, 6), "labels": torch.tensor([0, 1])}
    assert ask.problem_with(good, 2) is None
    assert words in ask.problem_with({**good, **change}, 2).message


def test_a_device_refuses_rows_that_do_not_fit_their_mask():
    client = halves(fedpcl, HYPER)[1]["device-0"]
    with pytest.raises(WrongArraysError, match="sets has 2 rows, but held marks 3"):
        client.receive({"sets": normal(2, 6), "held": torch.tensor([[True, True, True]])})


def test_a_mean_of_too_few_samples_is_not_sent_but_used_on_its_device():
    clients = halves(fedpcl, replace(HYPER, least_samples=3))[1]
    client = clients["device-2"]
    assert client.run(Ask("train"))["labels"].tolist() == [2] and client.held.tolist() == [True, False, True]


def test_impossible_settings_are_refused_with_value_and_limit():
    for change, words in (
        ({"tau": 0.0}, "tau is 0.0, it must be at least"),
        ({"least_samples": 0}, "least_samples is 0"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(HYPER, **change)
