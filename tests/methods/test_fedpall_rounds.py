"""Tests of FedPall over whole rounds: crashes, absences, unusual devices and settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedpall
from protofleet.methods.parts.local import train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import torch_device_of, weights_of
from tests.methods.fedpall_halves import (
    HYPER,
    WIDTH,
    asks_of,
    client_of,
    halves,
    only,
    rows,
    told,
)
from tests.methods.fedpall_halves import narrow as narrow
from tests.methods.tiny import SHARDS, Shard, answer, play, same, server_of, tiny


def outcome(server, clients):
    return [snapshot(h.state()) for h in (server, *clients.values())] + [snapshot(server.payload())]


@pytest.mark.parametrize("changes", [{}, {"features": "train", "amplifier": "train"}])
def test_restored_halves_continue_with_the_same_bits(changes):
    hyper = replace(HYPER, **changes)
    (server, clients), (other, others) = halves(hyper, norm=True), halves(hyper, norm=True)
    play(server, only(clients, 0, 2), 1)
    play(server, clients, 2)
    for half, copy in zip((server, *clients.values()), (other, *others.values()), strict=True):
        copy.restore(snapshot(half.state()))
    saved = [h.state() for h in (server, *clients.values())]
    before = [snapshot(s) for s in saved]
    play(server, clients, 3)
    torch.manual_seed(99)
    play(other, others, 3)
    assert all(same(a, b) for a, b in zip(outcome(server, clients), outcome(other, others), strict=True))
    assert all(same(a, b) for a, b in zip(saved, before, strict=True))  # A saved state does not change later.


def test_a_server_restored_to_an_earlier_round_has_the_devices_of_that_round():
    server, clients = halves()
    start = server.state()
    play(server, only(clients, 0), 1)
    one = server.state()
    play(server, clients, 2)
    assert server.models.A[6].weight.shape == (3, WIDTH)
    server.restore(one)
    assert same(server.state(), one) and server.models.devices == ["device-0"]
    server.restore(start)
    assert same(server.state(), start) and server.payload() == {} and server.latest == []


@pytest.mark.parametrize("changes", [{}, {"features": "train"}])
def test_a_device_that_reboots_between_the_phases_sends_the_same_mixture(changes):
    server, clients = halves(replace(HYPER, **changes), norm=True)
    asks = asks_of(server)
    play(server, clients, 1)
    client = client_of(norm=True, **changes)
    answer(client, asks[0], 1)
    rebooted = client_of(norm=True, **changes)
    rebooted.restore(client.state())
    assert same(answer(rebooted, asks[1], 1), answer(client, asks[1], 1))
    assert same(rebooted.state(), clients["device-0"].state())


def test_the_same_phase_from_the_same_state_gives_the_same_bits():
    server, clients = halves(norm=True)
    asks = asks_of(server)
    play(server, clients, 1)
    client, saved = clients["device-1"], None
    play(server, clients, 2)
    client.restore(saved := client.state())
    first = answer(client, asks[2], 3)
    client.restore(saved)
    assert same(first, answer(client, asks[2], 3))


def test_an_absent_device_keeps_its_model_and_receives_the_current_prototypes():
    server, clients = halves()
    asks = asks_of(server)
    play(server, clients, 1)
    own = snapshot(weights_of(clients["device-2"].model))
    play(server, only(clients, 0, 1), 2)
    assert same(own, weights_of(clients["device-2"].model))
    current = snapshot(server.payload())
    play(server, clients, 3)
    assert torch.equal(asks[4].payload["prototypes"], current["prototypes"])


@pytest.mark.parametrize(
    "hyper", [HYPER, replace(HYPER, classifier="network", features="train", amplifier="train")]
)
@pytest.mark.parametrize("labels", [(), (1,), (1, 1, 1), (0,) * 8 + (2,)])
def test_devices_with_little_data_take_part(labels, hyper):
    server, clients = halves(hyper, norm=True)
    few = Shard(SHARDS["device-0"].x[: len(labels)], torch.tensor(labels, dtype=torch.int64))
    clients["device-9"] = fedpall.Client(tiny(norm=True), few, hyper, 7, "device-9")
    for number in (1, 2):
        up = play(server, clients, number)
    assert len(up[0]["device-9"]["labels"]) == len(set(labels)) and len(up[1]["device-9"]["labels"]) == len(
        labels
    )
    for half in (server, *clients.values()):
        assert all(v.isfinite().all() for v in half.state().values())


def test_a_round_ends_with_one_device_and_with_a_device_without_samples():
    server, clients = halves()
    for number in (1, 2):
        play(server, only(clients, 1), number)
    assert server.known.tolist() == [True, True, False] and server.models.A[6].weight.shape == (1, WIDTH)
    empty = {"device-9": client_of("device-9", Shard(SHARDS["device-0"].x[:0], SHARDS["device-0"].y[:0]))}
    before = server.prototypes.clone()
    play(server, empty, 3)
    assert torch.equal(server.prototypes, before) and server.monitor()["features"] == 0.0
    assert all(v.isfinite().all() for v in server.state().values())
    alone, nobody = server_of(fedpall.METHOD, HYPER), client_of("device-9", empty["device-9"].data)
    play(alone, {"device-9": nobody}, 1)
    assert alone.payload() == {} and nobody.other_rules() == {}


def test_devices_with_different_networks_learn_together():
    assert fedpall.METHOD.mixed_networks and fedpall.METHOD.reports == "personal"
    server, clients = halves(replace(HYPER, epochs=10))
    clients["device-1"] = client_of("device-1", norm=True, epochs=10)
    for number in (1, 2, 3):
        play(server, clients, number)
    for client in clients.values():
        client.model.eval()
        assert (client.predict(client.data.x).argmax(1) == client.data.y).float().mean() > 0.8


def test_devices_without_both_losses_and_the_global_classifier_learn_alone():
    server, clients = halves(
        replace(HYPER, use_kl=False, use_infonce=False, use_global_classifier=False), norm=True
    )
    for number in (1, 2):
        play(server, clients, number)
    alone = client_of("device-1", norm=True)
    for number in (1, 2):
        alone.begin(number)
        plain = lambda x, y: F.cross_entropy(alone.model(x), y)  # noqa: E731
        train(alone.model, alone.data, plain, HYPER, alone.generator("train"))
    assert same(weights_of(alone.model), weights_of(clients["device-1"].model))


def test_the_other_rule_of_a_device_predicts_the_nearest_prototype_by_angle():
    client = client_of()
    assert client.other_rules() == {}
    told(client, torch.stack([5 * rows()[0], rows()[2]]), (0, 2))
    z = client.model.embed(client.data.x).detach()
    scores = client.scores(client.data.x, client.other_rules()["prototype"])
    for i, row in enumerate((rows()[0], None, rows()[2])):
        if row is None:
            assert (scores[:, i] == -math.inf).all()
        else:
            assert_close(scores[:, i], F.cosine_similarity(z, row[None]))
    assert torch.equal(client.predict(client.data.x), client.model(client.data.x))
    assert torch.equal(client.embedding(client.data.x), client.model.embed(client.data.x))


def test_all_tensors_of_a_half_are_on_the_device_of_its_model():
    client = fedpall.Client(tiny().to("meta"), SHARDS["device-0"], HYPER, 7, "device-0")
    server = fedpall.Server(tiny().to("meta"), HYPER, 7)
    server.models.add_devices("ab")
    made = [client.H, client.A, server.models.C_g, server.models.A]
    assert {torch_device_of(part).type for part in made} == {"meta"}
    assert {t.device.type for t in (client.prototypes, client.known, server.prototypes)} == {"meta"}


@pytest.mark.parametrize(
    "setting, value, limit",
    [
        ("classifier", "mlp", "one of paper, network"),
        ("mu", math.nan, "at least 0"),
        ("delta", -0.1, "at least 0"),
        ("tau", 0.0, "at least 1e-06"),
        ("kl", "forward", "one of paper, reverse"),
        ("infonce", "no", "one of standard, paper, code"),
        ("alpha_low", 1.1, "at least 0 and at most 1"),
        ("alpha_high", 0.7, "between alpha_low = 0.8 and 1"),
        ("alpha_round", 16, "at least 0 and at most 15"),
        ("mask", "none", "one of bernoulli, exact"),
        ("beta", 0.0, "above 0 and at most 1"),
        ("noise", -1.0, "at least 0"),
        ("features", "batch", "one of eval, train"),
        ("amplifier", "batch", "one of eval, train"),
        ("clients", -1, "at least 0"),
        ("server_epochs", 0, "at least 1"),
        ("server_batch", 0, "at least 1"),
        ("server_lr", 0.0, "above 0"),
        ("server_momentum", 1.0, "at least 0 and below 1"),
        ("server_weight_decay", -1.0, "at least 0"),
        ("epochs", 0, "at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, value, limit):
    shown = repr(value) if isinstance(value, str) else value
    with pytest.raises(ValueError) as error:
        fedpall.Hyper(**{setting: value})
    assert str(error.value).startswith(f"{setting} is {shown}, it must be {limit}")


def test_the_default_settings_are_those_for_digits_and_for_the_server_optimizer():
    hyper = fedpall.Hyper()
    assert (hyper.epochs, hyper.batch, hyper.lr, hyper.momentum, hyper.weight_decay) == (5, 64, 0.01, 0, 0)
    server = hyper.server
    assert (server.epochs, server.batch, server.lr) == (1, 64, 0.01)
    assert (server.momentum, server.weight_decay, server.clip) == (0.9, 1e-5, None)
    assert (hyper.mu, hyper.delta, hyper.tau, hyper.beta) == (0.7, 0.3, 3.0, 0.9)
