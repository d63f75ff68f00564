"""FedSA's halves, called directly: anchors that move slowly, and a margin from the device's own past."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from methods import fedsa
from methods.base import Ask, Reply, seeded
from methods.bridge import LazyPayload, to_numpy, to_torch
from methods.cost import Sizes
from methods.local import LocalHyper, embed, train
from methods.maths.margins import client_margin, margin
from methods.nets.base import Net, initialised_from
from methods.weights import snapshot, weights_of
from tests.methods.test_oracles_fedsa import naive_contrast, naive_margin, naive_prototypes
from tests.methods.tiny import (
    SHARDS,
    Shard,
    answer,
    clients_of,
    floats,
    normal,
    play,
    same,
    server_of,
    shard,
    tiny,
)

HYPER = fedsa.Hyper(epochs=2, batch=8, lr=0.05)
TABLE, UP = 3 * 6, {"prototypes": 3 * 6, "labels": 3, "counts": 3}


def halves(hyper=HYPER, shards=SHARDS, **network):
    return server_of(fedsa.METHOD, hyper, **network), clients_of(fedsa.METHOD, hyper, shards, **network)


def single(*shape, seed=0):
    return normal(*shape, seed=seed, dtype=torch.float32)


def client_with(device="device-0", **changes):
    """A device that has been told anchors of its own scale."""
    client = clients_of(fedsa.METHOD, replace(HYPER, **changes))[device]
    client.receive({"anchors": single(3, 6)})
    client.margin = torch.tensor(0.7)
    return client


def sent_by(device, rows, labels, counts):
    payload = {"prototypes": rows, "labels": torch.tensor(labels), "counts": torch.tensor(counts)}
    return Reply(device, sum(counts), payload)


def told(server, *replies):
    """One round in which these are all that came."""
    story = server.round()
    ask = next(story)
    assert [problem for r in replies if (problem := ask.problem_with(r.payload))] == []
    with pytest.raises(StopIteration):
        story.send(list(replies))
    return server


# Where the anchors start


def naive_embedding(rows, layers):
    """Linear, batch norm over the rows, ReLU; twice."""
    for linear in layers:
        rows = rows @ linear.weight.T + linear.bias
        mean, variance = rows.mean(dim=0), rows.var(dim=0, unbiased=False)
        rows = ((rows - mean) / (variance + 1e-5).sqrt()).clamp(min=0)
    return rows.detach()


def test_anchors_start_as_an_untrained_embedding_of_random_class_anchors():
    with initialised_from(seeded(7, "server", "anchors").initial_seed()):
        class_anchors, layers = torch.randn(3, 6), [nn.Linear(6, 6), nn.Linear(6, 6)]
    assert_close(server_of(fedsa.METHOD, HYPER).anchors, naive_embedding(class_anchors, layers))
    without = server_of(fedsa.METHOD, replace(HYPER, anchors="random"))
    assert torch.equal(without.anchors, class_anchors)


def test_anchors_come_from_the_seed_alone():
    one = server_of(fedsa.METHOD, HYPER)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    other, foreign = server_of(fedsa.METHOD, HYPER), fedsa.Server(tiny(), HYPER, 8)
    assert torch.equal(one.anchors, other.anchors) and not torch.equal(one.anchors, foreign.anchors)
    assert torch.equal(torch.get_rng_state(), before) and not one.anchors.requires_grad


def test_the_embedding_brings_anchors_closer_than_they_were_drawn():
    """Half of 512 unit normals survive the ReLU: length 16, where random anchors have 22.6."""
    wide = Net(nn.Flatten(), 512, 10)
    projected, drawn = (
        fedsa.Server(wide, replace(HYPER, anchors=a), 7).anchors for a in ("projected", "random")
    )
    assert projected.min() == 0 and float(projected.norm(dim=1).mean()) == pytest.approx(16, abs=0.3)
    assert float(margin(projected, "nearest")) == pytest.approx(18.5, abs=1.0)
    assert float(margin(drawn, "nearest")) == pytest.approx(31, abs=1.0)


# A device's loss


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mcl_on", ["samples", "batch_prototypes"])
@pytest.mark.parametrize("reading, lambda1", [("samples", 10.0), ("batch_prototypes", 0.1)])
def test_the_objective_is_equation_9_in_each_of_its_readings(reading, lambda1, mcl_on, bias):
    changes = {"regularisation": reading, "mcl_on": mcl_on, "cc_bias": bias, "lambda2": 0.3, "lambda3": 0.7}
    client = client_with("device-2", **changes)
    x, y, anchors, head = client.data.x, client.data.y, client.anchors, client.model.head
    z = client.model.embed(x)
    means, labels = naive_prototypes(z, y)
    gaps = [(m - anchors[c]).norm() for m, c in zip(means, labels, strict=True)]
    pull = (z - anchors[y]).square().mean() if reading == "samples" else sum(gaps)
    rows = (z, y) if mcl_on == "samples" else (means, labels)
    contrast = naive_contrast(*rows, anchors, 0.7).mean()
    scores = anchors @ head.weight.T + (head.bias if bias else 0.0)
    calibration = -scores.log_softmax(dim=1).diagonal().mean()
    expected = F.cross_entropy(head(z), y) + lambda1 * pull + 0.3 * contrast + 0.7 * calibration
    assert_close(client.objective(x, y), expected)


@pytest.mark.parametrize("lambda2", [0.0, 0.5])
@pytest.mark.parametrize("lambda3", [0.0, 0.5])
@pytest.mark.parametrize("anchors", ["random", "projected"])
def test_every_row_of_table_4_can_be_run(anchors, lambda2, lambda3):
    hyper = replace(HYPER, anchors=anchors, lambda2=lambda2, lambda3=lambda3)
    server, clients = halves(hyper)
    client = clients["device-0"]
    client.receive(server.payload())
    client.margin = margin(server.anchors, "pairs")
    x, y, A = client.data.x, client.data.y, server.anchors
    z = client.model.embed(x)
    expected = F.cross_entropy(client.model.head(z), y) + 10 * F.mse_loss(z, A[y])
    expected = expected + lambda2 * naive_contrast(z, y, A, naive_margin(A, "pairs")).mean()
    expected = expected + lambda3 * F.cross_entropy(client.model.head(A), torch.arange(3))
    assert_close(client.objective(x, y), expected)


def test_without_any_weight_it_is_the_cross_entropy_even_where_anchors_are_lost():
    client = client_with(lambda1=0.0, lambda2=0.0, lambda3=0.0)
    client.anchors = client.anchors * math.nan
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y))


def gradients(client):
    client.model.zero_grad()
    client.objective(client.data.x, client.data.y).backward()
    return {name: w.grad.clone() for name, w in client.model.named_parameters()}


def test_calibration_trains_the_head_alone():
    without, by = (gradients(client_with(lambda3=weight)) for weight in (0.0, 5.0))
    assert {name for name in by if not torch.equal(by[name], without[name])} == {"head.weight", "head.bias"}


def test_what_the_server_sends_is_constant():
    client = client_with(regularisation="batch_prototypes")
    client.anchors.requires_grad_()
    client.margin = client_margin(client.anchors, client.own, "pairs")
    other = client_with(regularisation="batch_prototypes")
    other.margin = client.margin.detach()
    assert same(gradients(client), gradients(other))


# Margins over rounds


def watched(client):
    """The margins that the device's batches meet."""
    met, objective = [], client.objective
    client.objective = lambda x, y: met.append(float(client.margin)) or objective(x, y)
    return met


@pytest.mark.parametrize("rule", ["pairs", "nearest", "paper"])
def test_a_round_has_one_margin_of_the_prototypes_of_the_last_participation(rule):
    server, clients = halves(replace(HYPER, margin=rule, decay=0.5))
    client, others = clients["device-0"], {n: c for n, c in clients.items() if n != "device-0"}
    met = watched(client)
    first = naive_margin(server.anchors, rule)
    sent = play(server, clients, 1)[0]["device-0"]["prototypes"]
    assert met == pytest.approx([first] * 6)  # 24 samples, batches of 8, 2 epochs
    play(server, others, 2)  # this device sits out
    met.clear()
    server.anchors = 0.1 * server.anchors
    assert (own := naive_margin(sent, rule)) > naive_margin(server.anchors, rule)
    play(server, clients, 3)
    assert met == pytest.approx([own] * 6)


def test_own_margins_count_where_they_are_larger():
    client = client_with()
    client.own = 100 * single(2, 6, seed=4)
    client.run(Ask("train"))
    assert float(client.margin) == pytest.approx(naive_margin(100 * single(2, 6, seed=4), "pairs"))


def test_a_device_of_one_class_takes_the_global_margin():
    server, clients = halves(shards={"device-0": shard(0, (1,) * 6), "device-1": shard(1, (2,))})
    for number in (1, 2):
        expected = naive_margin(server.anchors, "pairs")
        up = play(server, clients, number)[0]
        assert [float(c.margin) for c in clients.values()] == pytest.approx([expected] * 2)
        assert up["device-0"]["labels"].tolist() == [1] and up["device-1"]["counts"].tolist() == [1]
    assert all(v.isfinite().all() for c in clients.values() for v in c.state().values())


# What devices send


def test_prototypes_are_the_features_after_training_in_evaluation_mode():
    client = clients_of(fedsa.METHOD, HYPER, norm=True)["device-2"]
    client.receive({"anchors": single(3, 6)})
    sent = client.run(Ask("train"))
    z = embed(client.model, client.data.x)
    assert sent["labels"].tolist() == [0, 2] and sent["counts"].tolist() == [2, 5]
    for row, label in zip(sent["prototypes"], (0, 2), strict=True):
        assert_close(row, z[client.data.y == label].mean(dim=0))
    assert torch.equal(client.own, sent["prototypes"])


def test_the_authors_prototypes_are_all_features_seen_while_training():
    hyper = replace(HYPER, epochs=3, batch=4, proto_source="training")
    client = clients_of(fedsa.METHOD, hyper, norm=True)["device-2"]
    client.receive({"anchors": single(3, 6)})
    for _ in range(2):  # a second round starts anew
        seen, features = [], client.model.embed
        client.model.embed = lambda x: seen.append(features(x)) or seen[-1]
        labels, objective = [], client.objective
        client.objective = lambda x, y: labels.append(y) or objective(x, y)
        sent = client.run(Ask("train"))
        client.model.embed, client.objective = features, objective
        z, y = torch.cat(seen).detach(), torch.cat(labels)
        assert len(seen) == 6 and sent["counts"].tolist() == [2, 5]  # of samples, not of epochs
        for row, label in zip(sent["prototypes"], (0, 2), strict=True):
            assert_close(row, z[y == label].mean(dim=0))


def test_a_round_is_plain_sgd_on_the_objective():
    client = client_with(epochs=1)
    client.begin(1)
    model, d = tiny(), naive_margin(client.anchors, "pairs")

    def objective(x, y):
        z = model.embed(x)
        pull = 10 * F.mse_loss(z, client.anchors[y]) + 0.01 * naive_contrast(z, y, client.anchors, d).mean()
        calibration = F.cross_entropy(model.head(client.anchors), torch.arange(3))
        return F.cross_entropy(model.head(z), y) + pull + calibration

    local = LocalHyper(epochs=1, batch=8, lr=0.05, momentum=0.0, weight_decay=0.0)
    train(model, client.data, objective, local, seeded(7, 1, "device-0", "train"))
    client.run(Ask("train"))
    for name, value in weights_of(model).items():
        assert_close(weights_of(client.model)[name], value, msg=lambda m, name=name: f"{name}: {m}")


def test_anchors_go_down_always_and_prototypes_once_there_are_any():
    server, clients = halves()
    ask = next(server.round())
    assert floats(ask.payload) == {"anchors": TABLE}
    up = play(server, {"device-1": clients["device-1"]}, 1)[0]["device-1"]
    assert floats(up) == {"prototypes": 2 * 6, "labels": 2, "counts": 2} and up["labels"].tolist() == [0, 1]
    assert floats(server.payload()) == {"anchors": TABLE, "prototypes": 2 * 6, "labels": 2}
    assert floats(play(server, clients, 2)[0]["device-0"]) == UP
    assert floats(server.payload()) == {"anchors": TABLE, "prototypes": TABLE, "labels": 3}
    assert same(snapshot(server.payload()), snapshot(next(server.round()).payload))


def test_without_test_prototypes_only_anchors_go_down():
    server, clients = halves(replace(HYPER, send_prototypes=False, inference="classifier"))
    for number in (1, 2):
        assert floats(next(server.round()).payload) == {"anchors": TABLE}
        play(server, clients, number)
    assert floats(server.payload()) == {"anchors": TABLE} and server.known.all()


def test_the_cost_is_what_crosses():
    server, clients = halves()
    for number in (1, 2):
        down = floats(next(server.round()).payload)
        up = play(server, clients, number)[0]
        for name, client in clients.items():
            sizes = Sizes(client.model, held=len(client.data.y.unique()), first_round=number == 1)
            cost = fedsa.METHOD.cost(sizes)
            assert (cost.up, cost.down) == (floats(up[name]), down)


def test_the_papers_figures():
    """CIFAR-10, CIFAR-100 and Tiny-ImageNet: C x D either way, of prototypes up and anchors down."""
    for classes, expected in [(10, 5_120), (100, 51_200), (200, 102_400)]:
        cost = fedsa.METHOD.cost(Sizes(Net(nn.Flatten(), 512, classes), held=classes, first_round=True))
        assert cost.up["prototypes"] == cost.down["anchors"] == expected


# The server


def test_the_round_averages_by_examples_and_moves_the_anchors_of_what_came():
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
def test_the_round_takes_the_reading_that_is_set(reading, share):
    server = server_of(fedsa.METHOD, replace(HYPER, aggregation=reading))
    a, b = single(1, 6), single(1, 6, seed=1)
    told(server, sent_by("a", a, [1], [30]), sent_by("b", b, [1], [10]))
    whole = 2 if reading == "unweighted" else 40
    assert_close(server.prototypes[1], (share[0] * a[0] + share[1] * b[0]) / whole)


def test_a_class_that_nobody_holds_keeps_its_anchor_and_its_prototype():
    server, clients = halves()
    play(server, clients, 1)
    anchors, prototypes = server.anchors, server.prototypes
    play(server, {"device-1": clients["device-1"]}, 2)
    assert torch.equal(server.anchors[2], anchors[2]) and torch.equal(server.prototypes[2], prototypes[2])
    assert not torch.equal(server.anchors[0], anchors[0]) and server.known.all()


def test_the_authors_forget_prototypes_that_the_last_round_did_not_bring():
    server, clients = halves(replace(HYPER, keep_prototypes=False))
    play(server, clients, 1)
    play(server, {"device-1": clients["device-1"]}, 2)
    assert server.payload()["labels"].tolist() == [0, 1]
    client = clients["device-2"]
    client.receive(server.payload())
    assert (client.predict(client.data.x)[:, 2] == -math.inf).all()


def test_a_device_alone_is_taken_over_as_it_is():
    server, clients = halves()
    up = play(server, {"device-0": clients["device-0"]}, 1)[0]["device-0"]
    assert_close(server.prototypes, up["prototypes"])


def test_a_device_that_names_a_class_twice_has_one_voice():
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


def test_uploads_may_be_read_from_the_disk():
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
def test_other_uploads_are_refused(change, problem):
    ask = next(server_of(fedsa.METHOD, HYPER).round())
    assert ask.problem_with(HONEST) is None
    assert ask.problem_with({**HONEST, **change}) == problem


@pytest.mark.parametrize("reading", ["weighted", "unweighted", "paper"])
def test_the_largest_uploads_poison_nothing(reading):
    server, clients = halves(replace(HYPER, aggregation=reading, decay=0.0))
    rows = torch.full((3, 6), 1e6)
    story = [sent_by(d, s * rows, [0, 1, 1], [2**31 - 1] * 3) for d, s in (("a", 1), ("b", 1), ("c", -1))]
    told(server, *story)
    client = clients["device-0"]
    client.receive(server.payload())
    client.margin = client_margin(client.anchors, client.own, "paper")
    assert all(v.isfinite().all() for v in server.state().values() if v.is_floating_point())
    assert all(g.isfinite().all() for g in gradients(client).values())


def test_the_ledger_gets_the_margins_between_anchors():
    server = server_of(fedsa.METHOD, HYPER)
    gaps = torch.cdist(server.anchors, server.anchors) + torch.diag(torch.full((3,), math.inf))
    found = server.monitor()
    assert [found[f"margin.{c}"] for c in range(3)] == pytest.approx(gaps.min(dim=1).values.tolist())
    assert found["margin.mean"] == pytest.approx(float(gaps.min(dim=1).values.mean()))


# Prediction


def test_the_prediction_is_the_nearest_known_prototype_and_the_head_is_beside_it():
    client = client_with()
    x = client.data.x
    assert torch.equal(client.predict(x), client.model(x))  # no prototypes yet
    rows = client.model.embed(x[[0, 2]]).detach()  # of class 0 and 2
    client.receive({"anchors": single(3, 6), "prototypes": rows, "labels": torch.tensor([0, 2])})
    scores, ways = client.predict(x), client.ways()
    assert_close(scores[:, [0, 2]], -torch.cdist(client.model.embed(x), rows).square(), rtol=1e-4, atol=1e-4)
    assert (scores[:, 1] == -math.inf).all() and scores[[0, 2]].argmax(1).tolist() == [0, 2]
    assert list(ways) == ["classifier"] and torch.equal(ways["classifier"](x), client.model(x))
    client.hyper = replace(client.hyper, inference="classifier")
    assert list(client.ways()) == ["prototype"] and torch.equal(client.ways()["prototype"](x), scores)
    assert torch.equal(client.predict(x), client.model(x))


def test_without_test_prototypes_there_is_one_way_to_predict():
    client = client_with(send_prototypes=False, inference="classifier")
    assert client.ways() == {} and torch.equal(client.predict(client.data.x), client.model(client.data.x))


def test_both_ways_learn():
    server, clients = halves(replace(HYPER, lambda1=1.0))
    for number in range(1, 16):
        play(server, clients, number)
    for client in clients.values():
        client.receive(server.payload())
        for predict in (client.predict, *client.ways().values()):
            assert (predict(client.data.x).argmax(1) == client.data.y).float().mean() > 0.9


# Networks


def test_networks_may_differ_where_embeddings_are_as_long():
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


def test_a_deeper_head_is_calibrated_with_its_biases_only():
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
def test_restored_halves_go_on_as_the_unbroken_ones_do(source):
    hyper = replace(HYPER, proto_source=source, decay=0.5)
    server, clients = halves(hyper, norm=True)
    late, early = {"device-2": clients.pop("device-2")}, dict(clients)
    for number in (1, 2):
        play(server, early, number)
    clients |= late  # has not taken part yet: its state is that of the start
    server.anchors = 0.1 * server.anchors  # the margins of those who have are their own
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


def test_restoring_the_first_state_forgets_prototypes_and_margins():
    server, clients = halves()
    start = [snapshot(h.state()) for h in (server, *clients.values())]
    first = play(server, clients, 1)[0]
    after = outcome(server, clients)
    for half, state in zip((server, *clients.values()), start, strict=True):
        half.restore(state)
    assert not server.known.any() and all(len(c.own) == 0 for c in clients.values())
    again = play(server, clients, 1)[0]
    assert all(same(first[n], again[n]) for n in first) and equal(outcome(server, clients), after)


def test_states_and_uploads_do_not_move_with_the_half():
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
        ({"lambda3": math.inf}, "lambda3 is inf, it must be finite and at least 0"),
        ({"decay": 1.1}, "decay is 1.1, it must be between 0 and 1"),
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
def test_impossible_settings_name_value_and_limit(changes, problem):
    with pytest.raises(ValueError) as error:
        fedsa.Hyper(**changes)
    assert str(error.value) == problem


def test_the_defaults_are_those_of_the_paper_and_lambda1_goes_with_its_reading():
    h = fedsa.Hyper()
    assert (h.epochs, h.batch, h.lr, h.momentum, h.weight_decay) == (1, 10, 0.01, 0.0, 0.0)
    assert (h.lambda2, h.lambda3, h.decay) == (0.01, 1.0, 0.9999)
    assert h.weight_of_regularisation() == 10
    assert replace(h, regularisation="batch_prototypes").weight_of_regularisation() == 0.1
    assert replace(h, lambda1=0.0).weight_of_regularisation() == 0
