"""Tests of FedHP's server: aggregation, unusual devices, uploads that no device should send, memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofleet.methods import fedhp
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.bridge import LazyPayload, to_numpy, to_torch
from protofleet.methods.maths.geometry import unit
from protofleet.methods.nets import catalog as nets
from protofleet.methods.parts.hyperspheres import (
    aggregate,
    aggregate_as_printed,
    cosine_distance,
    distance_cross_entropy,
)
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.settings.reader import SettingsError
from tests.methods.fedhp_halves import HYPER, ask_to, client_with, halves, some
from tests.methods.tiny import (
    SHARDS,
    Shard,
    clients_of,
    normal,
    play,
    same,
    shard,
)

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
def test_the_round_weighs_replies_by_the_counts_that_devices_stated(reading):
    server, clients = halves(replace(HYPER, aggregation=reading))
    previous = server.prototypes
    up = play(server, clients, 1)[0]
    own = {name: c.data.y.bincount(minlength=3).tolist() for name, c in clients.items()}
    pieces = [(up[name]["prototypes"].double(), own[name]) for name in sorted(up)]
    assert_close(server.prototypes, naive_aggregate(pieces, previous.double(), reading).float())


def test_global_prototypes_are_not_normalised():
    server, clients = halves()
    play(server, clients, 1)
    assert (server.prototypes.norm(dim=1) - 1).abs().min() > 1e-4


@pytest.mark.parametrize("reading, kept", [("normalised", True), ("counts", True), ("paper", False)])
def test_a_class_that_no_device_holds_keeps_its_row(reading, kept):
    server, clients = halves(replace(HYPER, aggregation=reading))
    play(server, clients, 1)
    before = server.prototypes
    play(server, some(clients, 1), 2)  # device-1 holds classes 0 and 1.
    assert torch.equal(server.prototypes[2], before[2] if kept else torch.zeros(6))
    assert not torch.equal(server.prototypes[0], before[0])
    for number in (3, 4):  # A row of zeros has no direction and does no harm.
        play(server, clients, number)
    assert server.prototypes.isfinite().all() and (server.prototypes[2] != 0).any()


def test_aggregation_without_replies_changes_nothing():
    previous = normal(3, 2)
    assert torch.equal(aggregate([], previous), previous)
    assert torch.equal(aggregate_as_printed([], previous), previous)


def test_the_global_prototypes_equal_those_of_a_single_device():
    server, clients = halves()
    up = play(server, some(clients, 0), 1)[0]["device-0"]
    assert_close(server.prototypes, up["prototypes"])


def test_a_device_without_stated_counts_is_refused_by_its_name():
    server, clients = halves()
    up = play(server, clients, 1)[0]["device-0"]
    del server.begin  # Now members have no class counts.
    server.begin(2, [Member("device-0", 24)])
    story = server.round()
    next(story)
    with pytest.raises(ValueError, match="device-0 has stated counts of 0 classes, but FedHP needs all 3"):
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
    odd_one.after_last_round()
    assert odd_one.predict(SHARDS["device-0"].x).isfinite().all()


def test_training_also_changes_the_prototypes_of_absent_classes():
    client = clients_of(fedhp.METHOD, HYPER)["device-1"]  # It holds classes 0 and 1.
    before = normal(3, 6, dtype=torch.float32)
    client.receive({"prototypes": before, "anchors": unit(before)})
    assert not torch.equal(client.run(Ask("train"))["prototypes"][2], before[2])


def test_devices_may_have_different_networks_with_the_same_embedding_size():
    server, clients = halves(projector=False)
    deep = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 8))
    clients["device-1"].model.features = deep
    other = fedhp.Client(clients["device-1"].model, SHARDS["device-1"], HYPER, 7, "device-1")
    clients["device-1"] = other
    play(server, clients, 1)
    assert server.prototypes.isfinite().all() and torch.equal(other.anchors, server.anchors)


# Uploads that no device should send


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
def test_impossible_uploads_are_refused(payload, problem):
    server, clients = halves()
    assert ask_to(server, clients).problem_with(payload).message.startswith(problem)


@pytest.mark.parametrize("reading", fedhp.AGGREGATE)
def test_the_largest_allowed_uploads_and_counts_leave_finite_states(reading):
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
def test_losses_and_gradients_are_finite_for_all_prototypes(size, dtype, met, seed):
    prototypes = (size * normal(3, 4, seed=seed, dtype=torch.float32)).requires_grad_()
    z = prototypes.detach()[[0, 1]] if met else normal(2, 4, seed=seed + 1, dtype=torch.float32)
    z = z.clamp(-6e4, 6e4).to(dtype).requires_grad_()
    anchors = unit(normal(3, 4, seed=seed + 2, dtype=torch.float32))
    loss = distance_cross_entropy(z, torch.tensor([0, 2]), prototypes) + cosine_distance(anchors, prototypes)
    for value in (loss, *torch.autograd.grad(loss, [z, prototypes])):
        assert value.isfinite().all()


# Memory


def test_restored_halves_continue_with_the_same_bits():
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


def test_restoring_the_first_state_removes_anchors_and_moments():
    client = clients_of(fedhp.METHOD, HYPER)["device-0"]
    start = client.state()
    client.receive({"prototypes": torch.ones(3, 6), "anchors": torch.ones(3, 6)})
    client.run(Ask("train"))
    client.restore(start)
    assert client.anchors is None and same(client.state(), start)
    assert not any(name.startswith(("sgd.", "adam.", "anchors")) for name in start)


def test_a_saved_state_is_a_copy_that_later_rounds_do_not_change():
    server, clients = halves(norm=True)
    play(server, clients, 1)
    states = [h.state() for h in (server, *clients.values())]
    before = [snapshot(s) for s in states]
    for half, state in zip((server, *clients.values()), states, strict=True):
        half.restore(state)
    play(server, clients, 2)
    assert all(same(a, b) for a, b in zip(states, before, strict=True))


def test_the_state_of_a_device_without_momentum_has_no_buffers_of_sgd():
    client = client_with(momentum=0.0)
    client.run(Ask("train"))
    state = client.state()
    assert not any(name.startswith("sgd.") for name in state)
    client.restore(state)
    assert same(client.state(), state)


def test_the_monitor_reports_the_margins_between_global_prototypes():
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
        ("lam", math.inf, "at least 0"),
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
def test_impossible_settings_are_refused_with_value_and_limit(setting, value, limit):
    shown = repr(value) if isinstance(value, str) else value
    with pytest.raises(ValueError) as error:
        fedhp.Hyper(**{setting: value})
    assert str(error.value).startswith(f"{setting} is {shown}, it must be {limit}")


def test_the_default_settings_are_those_of_the_paper():
    h = fedhp.Hyper()
    assert (h.epochs, h.lr, h.momentum, h.weight_decay) == (5, 0.01, 0.9, 1e-4)
    assert (h.proto_lr, h.lam, h.lh_reduction, h.final_fit) == (0.005, 0.1, "sum", True)


def test_settings_with_which_anchors_would_take_hours_are_refused():
    model = nets.build("mlp", classes=20_000, image=(3, 8, 8))
    hyper = fedhp.Hyper(init_steps=10_000)
    with pytest.raises(SettingsError, match=r"init_steps is 10000.* at most 1562 steps"):
        fedhp.Server(model, hyper, 0)
