"""FedHP's halves, called directly: anchors once, prototypes as parameters, and two optimizers that remember."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from methods import fedhp
from methods.base import Ask, Member, Reply
from methods.bridge import LazyPayload, to_numpy, to_torch
from methods.cost import Sizes
from methods.maths.geometry import unit
from methods.maths.hyperspheres import (
    aggregate,
    aggregate_as_printed,
    cosine_distance,
    distance_cross_entropy,
    nearness,
    spread,
    uniformity,
)
from methods.weights import snapshot, weights_of
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

HYPER = fedhp.Hyper(epochs=2, batch=8, lr=0.05, init_steps=50)


def halves(hyper=HYPER, shards=SHARDS, **network):
    server, clients = (
        server_of(fedhp.METHOD, hyper, **network),
        clients_of(fedhp.METHOD, hyper, shards, **network),
    )
    return registered(server, clients), clients


def registered(server, clients):
    """Members come with the counts that their devices stated on joining."""
    begin = server.begin
    server.begin = lambda number, cohort: begin(number, [stated(m, clients[m.device]) for m in cohort])
    return server


def stated(member, client):
    return replace(member, counts=tuple(client.data.y.bincount(minlength=3).tolist()))


def some(clients, *numbers):
    return {name: clients[name] for name in (f"device-{i}" for i in numbers)}


def ask_to(server, clients, number=1):
    server.begin(number, [Member(name, len(c.data.y)) for name, c in sorted(clients.items())])
    return next(server.round())


def client_with(name="device-0", shards=SHARDS, network=None, **changes):
    """A device in the middle of a run: anchors and prototypes that differ from one another."""
    client = clients_of(fedhp.METHOD, replace(HYPER, **changes), shards, **(network or {}))[name]
    anchors, prototypes = (
        normal(3, client.model.embedding_size, seed=s, dtype=torch.float32) for s in (3, 4)
    )
    client.receive({"anchors": unit(anchors), "prototypes": prototypes})
    return client


# The anchors


def by_hand(start, steps, lr, momentum, decay):
    """SGD on eq. 3, row by row: a row's gradient is its nearest row, and every row whose nearest it is."""
    P, v = start.clone(), torch.zeros_like(start)
    for step in range(steps):
        P = torch.stack([row / row.norm() for row in P])
        g = torch.zeros_like(P)
        for i in range(len(P)):
            j = max((j for j in range(len(P)) if j != i), key=lambda j: float(P[i] @ P[j]))
            g[i] += P[j] / len(P)
            g[j] += P[i] / len(P)
        v = momentum * v + g + decay * P
        P = P - lr * v
    return torch.stack([row / row.norm() for row in P])


def test_spreading_is_sgd_on_equation_3_over_unit_rows():
    start = normal(4, 3).abs()
    assert_close(spread(start, 30, 0.1, 0.9, 1e-2), by_hand(start, 30, 0.1, 0.9, 1e-2))
    assert_close(spread(start, 0, 0.1, 0.9, 0.0), by_hand(start, 0, 0.1, 0.9, 0.0))


@pytest.mark.parametrize("classes, size", [(2, 6), (4, 6), (7, 6), (9, 3), (5, 1)])
def test_anchors_are_unit_rows_for_any_number_of_classes(classes, size):
    start = torch.rand(classes, size, generator=torch.Generator().manual_seed(1))
    found = spread(start, 100, 0.1, 0.9, 1e-4)
    assert_close(found.norm(dim=1), torch.ones(classes))
    assert uniformity(found) <= uniformity(unit(start)) and not found.requires_grad


def test_by_default_anchors_come_close_to_a_simplex():
    anchors = server_of(fedhp.METHOD, fedhp.Hyper()).anchors
    assert nearness(anchors).max() == pytest.approx(-1 / 2, abs=0.05)
    assert anchors.dtype == torch.float32


def test_the_uniform_loss_refuses_rows_that_are_not_unit():
    with pytest.raises(ValueError, match="unit rows; normalise them"):
        uniformity(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))


def test_anchors_come_from_the_seed_alone_and_are_the_first_prototypes():
    one = server_of(fedhp.METHOD, HYPER)
    torch.manual_seed(3)
    other, foreign = server_of(fedhp.METHOD, HYPER), fedhp.Server(one.model, HYPER, 8)
    assert torch.equal(one.anchors, other.anchors) and not torch.equal(one.anchors, foreign.anchors)
    assert torch.equal(one.prototypes, one.anchors)
    changes = {"init_steps": 49, "init_lr": 0.2, "init_momentum": 0.5, "init_weight_decay": 0.1}
    for name, value in changes.items():
        different = server_of(fedhp.METHOD, replace(HYPER, **{name: value}))
        assert not torch.equal(one.anchors, different.anchors), name


# Who is sent what


def test_the_anchors_go_down_once_and_prototypes_both_ways():
    server, clients = halves()
    for number, first in ((1, True), (2, False), (3, False)):
        ask = ask_to(server, clients, number)
        expected = fedhp.cost(Sizes(tiny(), held=2, first_round=first))
        up = play(server, clients, number)[0]
        assert floats(ask.payload) == expected.down
        assert [floats(p) for p in up.values()] == [expected.up] * 3
        assert expected.up == {"prototypes": 3 * 6} and ("anchors" in expected.down) == first


def test_a_cohort_is_sent_anchors_while_one_of_it_lacks_them():
    server, clients = halves()
    play(server, some(clients, 0, 1), 1)
    assert "anchors" not in ask_to(server, some(clients, 0), 2).payload
    assert "anchors" in ask_to(server, clients, 2).payload  # device-2 is new
    play(server, some(clients, 1), 2)
    assert "anchors" in ask_to(server, some(clients, 2), 3).payload
    play(server, clients, 3)
    assert "anchors" not in ask_to(server, clients, 4).payload


def test_the_last_evaluation_serves_a_device_that_never_took_part():
    server, clients = halves()
    play(server, some(clients, 0), 1)
    server.begin(2, [Member("device-0", 24)])
    assert floats(server.payload()) == {"prototypes": 18, "anchors": 18}
    late = clients["device-2"]
    late.begin(2)
    late.receive(snapshot(server.payload()))
    assert torch.equal(late.anchors, server.anchors) and torch.equal(late.prototypes, server.prototypes)
    late.settle()
    assert late.predict(late.data.x).isfinite().all()


def test_a_cohort_that_is_not_known_is_sent_the_anchors():
    assert "anchors" in next(server_of(fedhp.METHOD, HYPER).round()).payload


def test_only_who_answered_an_ask_with_anchors_is_known_to_have_them():
    server, clients = halves()
    ask_to(server, clients)
    story = server.round()
    next(story)
    reply = Reply("device-0", 24, answer(clients["device-0"], ask_to(server, clients), 1))
    with pytest.raises(StopIteration):
        story.send([reply])
    assert server.holders == {"device-0"}


def test_a_device_that_lost_its_memory_says_so_and_is_sent_the_anchors_next():
    server, clients = halves()
    play(server, clients, 1)
    clients["device-1"] = clients_of(fedhp.METHOD, HYPER)["device-1"]
    up = play(server, clients, 2)[0]
    assert floats(up["device-1"]) == {"prototypes": 18, "lacks": 1} and "lacks" not in up["device-0"]
    assert server.holders == {"device-0", "device-2"}
    play(server, clients, 3)
    assert torch.equal(clients["device-1"].anchors, server.anchors)
    assert "anchors" not in ask_to(server, clients, 4).payload


def test_a_device_that_sits_out_keeps_its_network_and_takes_the_current_prototypes():
    server, clients = halves()
    play(server, clients, 1)
    out = clients["device-1"]
    before = out.state()
    play(server, some(clients, 0, 2), 2)
    assert same(out.state(), before) and not torch.equal(server.prototypes, out.prototypes)
    ask = ask_to(server, clients, 3)
    out.receive(snapshot(ask.payload))
    assert torch.equal(out.prototypes, server.prototypes)
    assert same(weights_of(out.model), {k: v for k, v in before.items() if k.startswith("weights")})


# The client's loss and its two optimizers


def naive_loss(client, x, y, reduction="sum", lam=0.1):
    z = client.model.projector(client.model.features(x))
    rows = []
    for one, label in zip(z, y, strict=True):
        e = torch.stack([torch.exp(-(one - p).square().sum().sqrt()) for p in client.prototypes])
        rows.append(-torch.log(e[int(label)] / e.sum()))
    drift = [
        1 - (a * p).sum() / (a.norm() * p.norm())
        for a, p in zip(client.anchors, client.prototypes, strict=True)
    ]
    total = torch.stack(drift).sum() / (len(drift) if reduction == "mean" else 1)
    return torch.stack(rows).mean() + lam * total


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_clients_loss_is_equation_1(reduction):
    client = client_with(lh_reduction=reduction, lam=0.7)
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), naive_loss(client, x, y, reduction, 0.7))


def test_without_anchors_the_loss_is_the_distance_cross_entropy():
    client = client_with()
    client.anchors = None
    x, y = client.data.x, client.data.y
    assert_close(
        client.objective(x, y), F.cross_entropy(-torch.cdist(client.model.embed(x), client.prototypes), y)
    )


def sgd_step(w, g, v, hyper):
    g = g + hyper.weight_decay * w
    v = g if v is None else hyper.momentum * v + g
    return w - hyper.lr * v, v


def adam_step(p, g, m, s, t, lr):
    m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
    return p - lr * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-8), m, s


def plain_fits(client, rounds):
    """Whole-batch steps written out: momentum SGD on all but the head, Adam on the prototypes."""
    twin, hyper = deepcopy(client), client.hyper
    theta = [w for name, w in twin.model.named_parameters() if not name.startswith("head.")]
    momenta = [None] * len(theta)
    m, s, t, first = 0.0, 0.0, 0, twin.prototypes.detach().clone()
    for _ in range(rounds):
        twin.prototypes.data.copy_(first)
        for _ in range(hyper.epochs):
            loss = naive_loss(twin, twin.data.x, twin.data.y)
            *gradients, g = torch.autograd.grad(loss, [*theta, twin.prototypes])
            for i, (w, d) in enumerate(zip(theta, gradients, strict=True)):
                w.data, momenta[i] = sgd_step(w.data, d, momenta[i], hyper)
            t += 1
            twin.prototypes.data, m, s = adam_step(twin.prototypes.data, g, m, s, t, hyper.proto_lr)
    return twin


def test_two_rounds_are_sgd_on_the_network_and_adam_on_the_prototypes_that_both_remember():
    client = client_with(batch=100, epochs=3, weight_decay=0.01)
    first = client.prototypes.detach().clone()
    expected = plain_fits(client, 2)
    for number in (1, 2):
        client.begin(number)
        client.receive({"prototypes": first})
        sent = client.run(Ask("train"))
    assert_close(sent["prototypes"], expected.prototypes.detach(), rtol=1e-4, atol=1e-5)
    for name, w in client.model.named_parameters():
        assert_close(w, expected.model.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_only_prototypes_leave_a_device_and_its_head_is_never_trained():
    client = client_with()
    before = snapshot(weights_of(client.model))
    sent = client.run(Ask("train"))
    moved = {name for name, w in weights_of(client.model).items() if not torch.equal(w, before[name])}
    assert moved == {name for name in before if not name.startswith("weights.head.")}
    assert list(sent) == ["prototypes"] and sent["prototypes"].dtype == torch.float32
    assert torch.equal(sent["prototypes"], client.prototypes) and not sent["prototypes"].requires_grad


def test_what_was_sent_does_not_move_with_the_device():
    client = client_with()
    sent = client.run(Ask("train"))["prototypes"]
    before = sent.clone()
    client.settle()
    assert torch.equal(sent, before) and not torch.equal(client.prototypes, before)


@pytest.mark.parametrize("reset, steps", [(False, 12), (True, 6)])
def test_adams_moments_may_end_with_the_prototypes_they_belong_to(reset, steps):
    client = client_with(reset_adam=reset)  # 24 samples: 3 steps an epoch
    received = {"prototypes": client.prototypes.detach().clone()}
    for number in (1, 2):
        client.begin(number)
        client.receive(received)
        client.run(Ask("train"))
    state = client.state()
    assert float(state["adam.0.step"]) == steps
    assert any(name.startswith("sgd.") for name in state)


def test_clipping_is_about_the_network_alone():
    def moved(**changes):
        client = client_with(batch=100, epochs=1, **changes)
        before = client.state()
        client.run(Ask("train"))
        return {k: float((v - before[k]).norm()) for k, v in client.state().items() if k in before}

    free, clipped = moved(), moved(clip=1e-6)
    assert free["prototypes"] == clipped["prototypes"] > 0
    assert clipped["weights.features.0.weight"] < 1e-3 * free["weights.features.0.weight"]


def test_the_prediction_is_the_nearest_prototype():
    client = client_with()
    x = client.data.x
    rows = client.model.embed(x[[4, 2, 0]]).detach()
    client.receive({"prototypes": rows})
    scores = client.predict(x)
    assert_close(scores, -torch.cdist(client.model.embed(x), rows), rtol=1e-4, atol=1e-4)
    assert scores[[4, 2, 0]].argmax(dim=1).tolist() == [0, 1, 2]


def test_predictions_after_training_use_the_devices_own_prototypes():
    server, clients = halves()
    play(server, clients, 1)
    client = clients["device-0"]
    z = client.model.embed(client.data.x)
    assert_close(client.predict(client.data.x), -torch.cdist(z, client.prototypes), rtol=1e-4, atol=1e-4)
    assert not torch.equal(client.prototypes, server.prototypes)


def test_settling_is_one_more_local_training():
    client = client_with()
    client.run(Ask("train"))
    twin = client_with()
    twin.restore(client.state())
    for half in (client, twin):
        half.begin(9)
    client.settle()
    twin.run(Ask("settle"))
    assert same(client.state(), twin.state())


def test_without_the_final_fit_settling_changes_nothing():
    client = client_with(final_fit=False)
    before = client.state()
    client.settle()
    assert same(client.state(), before)


# The aggregation


def naive_aggregate(pieces, previous, reading):
    rows = []
    for j in range(len(previous)):
        weights, total = [], torch.zeros_like(previous[j])
        for prototypes, counts in pieces:
            n = sum(counts)
            w = counts[j] if reading == "counts" else counts[j] / n if n else 0.0
            weights.append(w)
            total = total + w * prototypes[j]
        if reading == "paper":
            rows.append(total / len(pieces))
        else:
            rows.append(total / sum(weights) if sum(weights) else previous[j])
    return torch.stack(rows)


@pytest.mark.parametrize("reading", fedhp.AGGREGATE)
@settings(deadline=None, max_examples=25)
@given(
    counts=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_aggregation_is_equation_5_in_each_of_its_readings(reading, counts, seed):
    tables = normal(len(counts) + 1, 3, 2, seed=seed)
    previous, tables = tables[-1], tables[:-1]
    expected = naive_aggregate(list(zip(tables, counts, strict=True)), previous, reading)
    pieces = [(t.float(), torch.tensor(c)) for t, c in zip(tables, counts, strict=True)]
    found = fedhp.AGGREGATE[reading](pieces, previous.float())
    assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("reading", fedhp.AGGREGATE)
def test_the_round_weighs_replies_by_the_counts_of_joining(reading):
    server, clients = halves(replace(HYPER, aggregation=reading))
    previous = server.prototypes
    up = play(server, clients, 1)[0]
    own = {name: c.data.y.bincount(minlength=3).tolist() for name, c in clients.items()}
    pieces = [(up[name]["prototypes"].double(), own[name]) for name in sorted(up)]
    assert_close(server.prototypes, naive_aggregate(pieces, previous.double(), reading).float())


def test_global_prototypes_are_not_made_unit_again():
    server, clients = halves()
    play(server, clients, 1)
    assert (server.prototypes.norm(dim=1) - 1).abs().min() > 1e-4


@pytest.mark.parametrize("reading, kept", [("normalised", True), ("counts", True), ("paper", False)])
def test_a_class_that_nobody_holds_keeps_its_row(reading, kept):
    server, clients = halves(replace(HYPER, aggregation=reading))
    play(server, clients, 1)
    before = server.prototypes
    play(server, some(clients, 1), 2)  # holds 0 and 1
    assert torch.equal(server.prototypes[2], before[2] if kept else torch.zeros(6))
    assert not torch.equal(server.prototypes[0], before[0])
    for number in (3, 4):  # a row of zeros has no direction, and does no harm
        play(server, clients, number)
    assert server.prototypes.isfinite().all() and (server.prototypes[2] != 0).any()


def test_without_replies_nothing_changes():
    previous = normal(3, 2)
    assert torch.equal(aggregate([], previous), previous)
    assert torch.equal(aggregate_as_printed([], previous), previous)


def test_a_device_alone_is_taken_over_as_it_is():
    server, clients = halves()
    up = play(server, some(clients, 0), 1)[0]["device-0"]
    assert_close(server.prototypes, up["prototypes"])


def test_a_member_without_counts_stops_the_round_with_its_name():
    server, clients = halves()
    up = play(server, clients, 1)[0]["device-0"]
    del server.begin  # members as they are, without counts
    server.begin(2, [Member("device-0", 24)])
    story = server.round()
    next(story)
    with pytest.raises(ValueError, match="device-0 has stated counts of 0 classes, FedHP needs all 3"):
        story.send([Reply("device-0", 24, up)])


# Odd devices


@pytest.mark.parametrize(
    "labels", [(), (1,), (2,) * 9, (0, 1, 1, 2), (0,) * 8 + (1,)], ids=lambda y: f"{len(y)}_samples"
)
@pytest.mark.parametrize("alone", [True, False])
def test_devices_with_few_classes_or_samples_take_part(labels, alone):
    odd = shard(0, labels) if labels else Shard(SHARDS["device-0"].x[:0], SHARDS["device-0"].y[:0])
    server, clients = halves(shards={"device-7": odd, **({} if alone else SHARDS)}, norm=True)
    for number in (1, 2, 3):
        play(server, clients, number)
    assert all(v.isfinite().all() for half in (server, *clients.values()) for v in half.state().values())
    odd_one = clients["device-7"]
    odd_one.settle()
    assert odd_one.predict(SHARDS["device-0"].x).isfinite().all()


def test_prototypes_of_absent_classes_still_move():
    client = clients_of(fedhp.METHOD, HYPER)["device-1"]  # holds 0 and 1
    before = normal(3, 6, dtype=torch.float32)
    client.receive({"prototypes": before, "anchors": unit(before)})
    assert not torch.equal(client.run(Ask("train"))["prototypes"][2], before[2])


def test_networks_may_differ_where_embeddings_are_as_long():
    server, clients = halves(projector=False)
    deep = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 8))
    clients["device-1"].model.features = deep
    other = fedhp.Client(clients["device-1"].model, SHARDS["device-1"], HYPER, 7, "device-1")
    clients["device-1"] = other
    play(server, clients, 1)
    assert server.prototypes.isfinite().all() and torch.equal(other.anchors, server.anchors)


# Uploads that nobody should send


def uploads(value):
    return {"prototypes": torch.full((3, 6), value)}


@pytest.mark.parametrize(
    "payload, problem",
    [
        (uploads(math.inf), "prototypes is not finite"),
        (uploads(2e6), "prototypes has 2e+06, above 1e+06"),
        (uploads(-3e38), "prototypes has -3e+38, below -1e+06"),
        ({"prototypes": torch.zeros(2, 6)}, "prototypes is (2, 6), not (3, 6)"),
        ({}, "no prototypes"),
        ({**uploads(0.0), "lacks": torch.zeros(2, dtype=torch.bool)}, "lacks is (2,), not (1,)"),
    ],
)
def test_other_uploads_are_refused(payload, problem):
    server, clients = halves()
    assert ask_to(server, clients).problem_with(payload).startswith(problem)


@pytest.mark.parametrize("reading", fedhp.AGGREGATE)
def test_the_largest_uploads_and_counts_poison_nothing(reading):
    server, clients = halves(replace(HYPER, aggregation=reading))
    del server.begin
    most = 2**63 - 1
    server.begin(1, [Member("device-0", 1, (most, most, 0)), Member("device-1", 1, (0, 0, 0))])
    story = server.round()
    ask = next(story)
    replies = [Reply(f"device-{i}", 1, LazyPayload(to_numpy(uploads(v)))) for i, v in ((0, 1e6), (1, -1e6))]
    assert all(ask.problem_with(r.payload) is None for r in replies)
    with pytest.raises(StopIteration):
        story.send(replies)
    client = clients["device-0"]
    client.begin(2)
    client.receive(snapshot(server.payload()))
    sent = client.run(Ask("train"))
    assert server.prototypes.isfinite().all() and sent["prototypes"].isfinite().all()
    assert all(math.isfinite(v) for v in server.monitor().values())


@settings(deadline=None, max_examples=60)
@given(
    size=st.sampled_from([0.0, 1e-30, 1e-12, 1e-6, 1.0, 1e6]),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    met=st.booleans(),
    seed=st.integers(0, 99),
)
def test_losses_and_gradients_are_finite_wherever_prototypes_are(size, dtype, met, seed):
    prototypes = (size * normal(3, 4, seed=seed, dtype=torch.float32)).requires_grad_()
    z = prototypes.detach()[[0, 1]] if met else normal(2, 4, seed=seed + 1, dtype=torch.float32)
    z = z.clamp(-6e4, 6e4).to(dtype).requires_grad_()
    anchors = unit(normal(3, 4, seed=seed + 2, dtype=torch.float32))
    loss = distance_cross_entropy(z, torch.tensor([0, 2]), prototypes) + cosine_distance(anchors, prototypes)
    for value in (loss, *torch.autograd.grad(loss, [z, prototypes])):
        assert value.isfinite().all()


# Memory


def test_restored_halves_go_on_as_the_unbroken_ones_do():
    server, clients = halves(norm=True)
    for number in (1, 2):
        play(server, clients, number)
    saved = [to_torch(to_numpy(h.state())) for h in (server, *clients.values())]
    other, others = halves(norm=True)
    for half, state in zip((other, *others.values()), saved, strict=True):
        half.restore(state)
        assert same(half.state(), state)
    play(server, clients, 3)
    play(other, others, 3)
    for one, two in zip((server, *clients.values()), (other, *others.values()), strict=True):
        assert same(one.state(), two.state())
    assert other.holders == set(clients)


def test_a_phase_repeated_from_the_same_state_gives_the_same_bits():
    client = client_with(network={"norm": True})
    client.run(Ask("train"))
    start = client.state()
    sent, after = client.run(Ask("train")), client.state()
    client.restore(start)
    assert same(client.state(), start)
    torch.manual_seed(5)
    assert same(client.run(Ask("train")), sent) and same(client.state(), after)


def test_restoring_the_first_state_forgets_anchors_and_moments():
    client = clients_of(fedhp.METHOD, HYPER)["device-0"]
    start = client.state()
    client.receive({"prototypes": torch.ones(3, 6), "anchors": torch.ones(3, 6)})
    client.run(Ask("train"))
    client.restore(start)
    assert client.anchors is None and same(client.state(), start)
    assert not any(name.startswith(("sgd.", "adam.", "anchors")) for name in start)


def test_states_do_not_move_with_their_halves_nor_halves_with_states():
    server, clients = halves(norm=True)
    play(server, clients, 1)
    states = [h.state() for h in (server, *clients.values())]
    before = [snapshot(s) for s in states]
    for half, state in zip((server, *clients.values()), states, strict=True):
        half.restore(state)
    play(server, clients, 2)
    assert all(same(a, b) for a, b in zip(states, before, strict=True))


def test_training_without_momentum_has_no_buffers_to_keep():
    client = client_with(momentum=0.0)
    client.run(Ask("train"))
    state = client.state()
    assert not any(name.startswith("sgd.") for name in state)
    client.restore(state)
    assert same(client.state(), state)


def test_the_ledger_gets_the_margins_between_global_prototypes():
    server, clients = halves()
    play(server, clients, 1)
    figures = server.monitor()
    nearest = torch.cdist(server.prototypes, server.prototypes).fill_diagonal_(math.inf).min(dim=1).values
    assert sorted(figures) == ["margin.0", "margin.1", "margin.2", "margin.mean"]
    assert [figures[f"margin.{c}"] for c in range(3)] == pytest.approx(nearest.tolist(), rel=1e-4)
    assert figures["margin.mean"] == pytest.approx(float(nearest.mean()), rel=1e-4)


@pytest.mark.parametrize(
    "setting, value, limit",
    [
        ("lam", -0.1, "at least 0"),
        ("lam", math.inf, "finite and at least 0"),
        ("proto_lr", 0.0, "above 0"),
        ("lh_reduction", "none", "one of sum, mean"),
        ("aggregation", "mean", "one of normalised, counts, paper"),
        ("init_steps", -1, "at least 0"),
        ("init_lr", math.nan, "above 0"),
        ("init_momentum", 1.0, "at least 0 and below 1"),
        ("init_weight_decay", -1.0, "at least 0"),
        ("batch", 0, "at least 1"),
    ],
)
def test_impossible_settings_name_value_and_limit(setting, value, limit):
    shown = repr(value) if isinstance(value, str) else value
    with pytest.raises(ValueError) as error:
        fedhp.Hyper(**{setting: value})
    assert str(error.value) == f"{setting} is {shown}, it must be {limit}"


def test_the_defaults_are_those_of_the_paper():
    h = fedhp.Hyper()
    assert (h.epochs, h.lr, h.momentum, h.weight_decay) == (5, 0.01, 0.9, 1e-4)
    assert (h.proto_lr, h.lam, h.lh_reduction, h.final_fit) == (0.005, 0.1, "sum", True)
