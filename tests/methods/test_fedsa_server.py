"""Tests of FedSA's server, predictions, networks, crashes and settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedsa
from protofleet.methods.contract.bridge import LazyPayload, to_numpy, to_torch
from protofleet.methods.maths.margins import client_margin
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.fedsa_halves import HYPER, client_with, gradients, halves, sent_by, single, told
from tests.methods.tiny import (
    SHARDS,
    Shard,
    answer,
    clients_of,
    floats,
    play,
    same,
    server_of,
    shard,
    tiny,
)

# The server


def test_a_round_averages_prototypes_by_examples_and_moves_anchors_of_received_classes():
    server = server_of(fedsa.METHOD, replace(HYPER, decay=0.75))
    before, a, b = server.anchors, single(2, 6), single(1, 6, seed=1)
    told(server, sent_by("a", a, [0, 1], [30, 2]), sent_by("b", b, [0], [10]))
    merged = (30 * a[0] + 10 * b[0]) / 40
    assert server.known.tolist() == [True, True, False]
    assert_close(server.prototypes[:2], torch.stack([merged, a[1]]))
    assert_close(server.anchors[0], 0.75 * before[0] + 0.25 * merged)
    assert_close(server.anchors[1], 0.75 * before[1] + 0.25 * a[1])
    assert torch.equal(server.anchors[2], before[2])


@pytest.mark.parametrize(
    "reading, share", [("weighted", (30, 10)), ("unweighted", (1, 1)), ("paper", (15, 5))]
)
def test_a_round_averages_prototypes_by_the_setting_aggregation(reading, share):
    server = server_of(fedsa.METHOD, replace(HYPER, aggregation=reading))
    a, b = single(1, 6), single(1, 6, seed=1)
    told(server, sent_by("a", a, [1], [30]), sent_by("b", b, [1], [10]))
    whole = 2 if reading == "unweighted" else 40
    assert_close(server.prototypes[1], (share[0] * a[0] + share[1] * b[0]) / whole)


def test_a_class_that_no_device_holds_keeps_its_anchor_and_its_prototype():
    server, clients = halves()
    play(server, clients, 1)
    anchors, prototypes = server.anchors, server.prototypes
    play(server, {"device-1": clients["device-1"]}, 2)
    assert torch.equal(server.anchors[2], anchors[2]) and torch.equal(server.prototypes[2], prototypes[2])
    assert not torch.equal(server.anchors[0], anchors[0]) and server.known.all()


def test_the_server_drops_prototypes_of_earlier_rounds_if_keep_prototypes_is_off():
    server, clients = halves(replace(HYPER, keep_prototypes=False))
    play(server, clients, 1)
    play(server, {"device-1": clients["device-1"]}, 2)
    assert server.payload()["labels"].tolist() == [0, 1]
    client = clients["device-2"]
    client.receive(server.payload())
    assert (client.predict(client.data.x)[:, 2] == -math.inf).all()


def test_the_global_prototypes_equal_those_of_a_single_device():
    server, clients = halves()
    up = play(server, {"device-0": clients["device-0"]}, 1)[0]["device-0"]
    assert_close(server.prototypes, up["prototypes"])


def test_several_rows_of_one_class_from_one_device_are_pooled():
    server = server_of(fedsa.METHOD, replace(HYPER, aggregation="unweighted"))
    rows, other = single(3, 6), single(1, 6, seed=1)
    told(server, sent_by("a", rows, [1, 1, 0], [1, 3, 5]), sent_by("b", other, [1], [1]))
    assert_close(server.prototypes[1], ((rows[0] + 3 * rows[1]) / 4 + other[0]) / 2)


def test_devices_without_samples_change_nothing():
    nobody = Shard(SHARDS["device-0"].x[:0], SHARDS["device-0"].y[:0])
    for source in ("eval", "training"):
        server, clients = halves(replace(HYPER, proto_source=source), {"device-0": nobody}, norm=True)
        before, weights = snapshot(server.state()), snapshot(weights_of(clients["device-0"].model))
        for number in (1, 2):
            up = play(server, clients, number)[0]["device-0"]
            assert floats(up) == {"prototypes": 0, "labels": 0, "counts": 0}
        assert same(server.state(), before) and same(weights_of(clients["device-0"].model), weights)


def test_uploads_can_be_read_from_the_disk():
    rows = single(2, 6)
    held, lazy = server_of(fedsa.METHOD, HYPER), server_of(fedsa.METHOD, HYPER)
    reply = sent_by("a", rows, [0, 2], [3, 4])
    told(held, reply)
    told(lazy, replace(reply, payload=LazyPayload(to_numpy(reply.payload))))
    assert same(held.state(), lazy.state())


HONEST = sent_by("a", single(2, 6), [0, 2], [3, 4]).payload


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"prototypes": torch.full((2, 6), 2e6)}, "prototypes has 2e+06, above 1e+06"),
        ({"prototypes": torch.full((2, 6), math.nan)}, "prototypes is not finite"),
        ({"prototypes": single(1, 6)}, "labels is (2,), not ('held',) with held = 1"),
        ({"labels": torch.tensor([0, 3])}, "labels has 3, above 2"),
        ({"counts": torch.tensor([0, 4])}, "counts has 0, below 1"),
        ({"counts": torch.tensor([3.0, 4.0])}, "counts is float32, not int64"),
    ],
)
def test_impossible_uploads_are_refused(change, problem):
    ask = next(server_of(fedsa.METHOD, HYPER).round())
    assert ask.problem_with(HONEST) is None
    assert ask.problem_with({**HONEST, **change}).message == problem


@pytest.mark.parametrize("reading", ["weighted", "unweighted", "paper"])
def test_the_largest_allowed_uploads_leave_finite_states(reading):
    server, clients = halves(replace(HYPER, aggregation=reading, decay=0.0))
    rows = torch.full((3, 6), 1e6)
    story = [sent_by(d, s * rows, [0, 1, 1], [2**31 - 1] * 3) for d, s in (("a", 1), ("b", 1), ("c", -1))]
    told(server, *story)
    client = clients["device-0"]
    client.receive(server.payload())
    client.margin = client_margin(client.anchors, client.own, "paper")
    assert all(v.isfinite().all() for v in server.state().values() if v.is_floating_point())
    assert all(g.isfinite().all() for g in gradients(client).values())


def test_the_monitor_reports_the_margins_between_anchors():
    server = server_of(fedsa.METHOD, HYPER)
    gaps = torch.cdist(server.anchors, server.anchors) + torch.diag(torch.full((3,), math.inf))
    found = server.monitor()
    assert [found[f"margin.{c}"] for c in range(3)] == pytest.approx(gaps.min(dim=1).values.tolist())
    assert found["margin.mean"] == pytest.approx(float(gaps.min(dim=1).values.mean()))


# Prediction


def test_a_device_predicts_the_nearest_prototype_and_its_other_rule_is_the_head():
    client = client_with()
    x = client.data.x
    assert torch.equal(client.predict(x), client.model(x))  # There are no prototypes yet.
    rows = client.model.embed(x[[0, 2]]).detach()  # Rows of class 0 and class 2.
    client.receive({"anchors": single(3, 6), "prototypes": rows, "labels": torch.tensor([0, 2])})
    scores, others = client.predict(x), client.other_rules()
    assert_close(scores[:, [0, 2]], -torch.cdist(client.model.embed(x), rows).square(), rtol=1e-4, atol=1e-4)
    assert (scores[:, 1] == -math.inf).all() and scores[[0, 2]].argmax(1).tolist() == [0, 2]
    assert list(others) == ["classifier"] and torch.equal(
        client.scores(x, others["classifier"]), client.model(x)
    )
    client.hyper = replace(client.hyper, inference="classifier")
    assert list(client.other_rules()) == ["prototype"] and torch.equal(
        client.scores(x, client.other_rules()["prototype"]), scores
    )
    assert torch.equal(client.predict(x), client.model(x))


def test_a_device_without_test_prototypes_has_one_way_to_predict():
    client = client_with(send_prototypes=False, inference="classifier")
    assert client.other_rules() == {} and torch.equal(
        client.predict(client.data.x), client.model(client.data.x)
    )


def test_both_ways_to_predict_learn():
    server, clients = halves(replace(HYPER, lambda1=1.0))
    for number in range(1, 16):
        play(server, clients, number)
    for client in clients.values():
        client.receive(server.payload())
        for rule in (client.rule(), *client.other_rules().values()):
            assert (client.scores(client.data.x, rule).argmax(1) == client.data.y).float().mean() > 0.9


# Networks


def test_devices_may_have_different_networks_with_the_same_embedding_size():
    clients = clients_of(fedsa.METHOD, HYPER)
    with initialised_from(5):
        own = Net(
            nn.Sequential(nn.Linear(4, 20), nn.Tanh()), 20, 3, projector=nn.Linear(20, 6), embedding_size=6
        )
    clients["device-3"] = fedsa.Client(own, shard(3), HYPER, 7, "device-3")
    server = server_of(fedsa.METHOD, HYPER)
    for number in (1, 2):
        assert all(
            floats(up)["prototypes"] == 6 * len(up["labels"])
            for up in play(server, clients, number)[0].values()
        )
    assert fedsa.METHOD.mixed_networks and fedsa.METHOD.reports == "personal"


def deep_head():
    model = tiny()
    model.head = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return model


def test_a_deeper_head_can_be_calibrated_only_with_its_biases():
    clients = {"device-0": fedsa.Client(deep_head(), SHARDS["device-0"], HYPER, 7, "device-0")}
    play(server_of(fedsa.METHOD, HYPER), clients, 1)
    without = replace(HYPER, cc_bias=False)
    for make in (
        lambda: fedsa.Client(deep_head(), SHARDS["device-0"], without, 7, "device-0"),
        lambda: fedsa.Server(deep_head(), without, 7),
    ):
        with pytest.raises(
            ValueError, match="the head is Sequential, which has no bias to leave out; take a linear"
        ):
            make()


# Crashes


def outcome(server, clients):
    return [snapshot(h.state()) for h in (server, *clients.values())] + [snapshot(server.payload())]


def equal(a, b):
    return all(same(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("source", ["eval", "training"])
def test_restored_halves_continue_with_the_same_bits(source):
    hyper = replace(HYPER, proto_source=source, decay=0.5)
    server, clients = halves(hyper, norm=True)
    late, early = {"device-2": clients.pop("device-2")}, dict(clients)
    for number in (1, 2):
        play(server, early, number)
    clients |= late  # Late devices have not taken part yet, so they have their first state.
    server.anchors = 0.1 * server.anchors  # Devices that have taken part have their own margins.
    saved = [to_numpy(h.state()) for h in (server, *clients.values())]
    other, others = halves(hyper, norm=True)
    for half, state in zip((other, *others.values()), saved, strict=True):
        half.restore({name: value.clone() for name, value in to_torch(state).items()})
    torch.manual_seed(99)
    up, again = play(server, clients, 3)[0], play(other, others, 3)[0]
    assert all(same(up[name], again[name]) for name in up)
    assert equal(outcome(other, others), outcome(server, clients))


def test_a_phase_repeated_from_the_same_state_gives_the_same_bits():
    server, clients = halves(norm=True)
    play(server, clients, 1)
    client, ask = clients["device-0"], next(server.round())
    saved = snapshot(client.state())
    first = answer(client, ask, 2)
    moved = snapshot(client.state())
    client.restore(saved)
    assert same(answer(client, ask, 2), first) and same(client.state(), moved)


def test_restoring_the_first_state_removes_prototypes_and_margins():
    server, clients = halves()
    start = [snapshot(h.state()) for h in (server, *clients.values())]
    first = play(server, clients, 1)[0]
    after = outcome(server, clients)
    for half, state in zip((server, *clients.values()), start, strict=True):
        half.restore(state)
    assert not server.known.any() and all(len(c.own) == 0 for c in clients.values())
    again = play(server, clients, 1)[0]
    assert all(same(first[n], again[n]) for n in first) and equal(outcome(server, clients), after)


def test_states_and_uploads_are_copies_that_later_rounds_do_not_change():
    server, clients = halves(norm=True)
    ups = [client.run(ask) for client, ask in ((c, asked(server, c)) for c in clients.values())]
    states = [*(h.state() for h in (server, *clients.values())), server.payload(), *ups]
    before = [snapshot(s) for s in states]
    play(server, clients, 1)
    play(server, clients, 2)
    assert equal(states, before)


def asked(server, client):
    ask = next(server.round())
    client.receive(ask.payload)
    return ask


# Settings


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"lambda1": -1.0}, "lambda1 is -1.0, it must be at least 0"),
        ({"lambda2": math.nan}, "lambda2 is nan, it must be at least 0"),
        ({"lambda3": math.inf}, "lambda3 is inf, it must be at least 0"),
        ({"decay": 1.1}, "decay is 1.1, it must be at least 0 and at most 1"),
        ({"anchors": "no"}, "anchors is 'no', it must be one of projected, random"),
        ({"regularisation": ""}, "regularisation is '', it must be one of samples, batch_prototypes"),
        ({"mcl_on": "no"}, "mcl_on is 'no', it must be one of samples, batch_prototypes"),
        ({"margin": "no"}, "margin is 'no', it must be one of pairs, nearest, paper"),
        ({"proto_source": "no"}, "proto_source is 'no', it must be one of eval, training"),
        ({"aggregation": "no"}, "aggregation is 'no', it must be one of weighted, unweighted, paper"),
        ({"inference": "no"}, "inference is 'no', it must be one of prototype, classifier"),
        (
            {"send_prototypes": False},
            "inference is 'prototype', it must be 'classifier' where send_prototypes is false",
        ),
        ({"batch": 0}, "batch is 0, it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(changes, problem):
    with pytest.raises(ValueError) as error:
        fedsa.Hyper(**changes)
    assert str(error.value).startswith(problem)


def test_the_default_settings_are_those_of_the_paper_and_lambda1_depends_on_its_reading():
    h = fedsa.Hyper()
    assert (h.epochs, h.batch, h.lr, h.momentum, h.weight_decay) == (1, 10, 0.01, 0.0, 0.0)
    assert (h.lambda2, h.lambda3, h.decay) == (0.01, 1.0, 0.9999)
    assert h.weight_of_regularisation() == 10
    assert replace(h, regularisation="batch_prototypes").weight_of_regularisation() == 0.1
    assert replace(h, lambda1=0.0).weight_of_regularisation() == 0
