"""Tests that the halves do what each paper says, by direct calls; other tests cover the wire."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import (
    adcol,
    apfl,
    ditto,
    fcclplus,
    fed3r,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedbn,
    fedcof,
    feddap,
    feddistill,
    feddyn,
    fedga,
    fedgen,
    fedgh,
    fedgram,
    fedheal,
    fedhp,
    fedkd,
    fedlsa,
    fedncm,
    fednh,
    fednova,
    fedpall,
    fedpcl,
    fedper,
    fedpft,
    fedplcc,
    fedplvm,
    fedproto,
    fedprox,
    fedrep,
    fedsa,
    fedsr,
    fedtgp,
    fedyogi,
    fml,
    fpl,
    ghofl,
    lgfedavg,
    moon,
    perfedavg,
    rucr,
    scaffold,
    singleset,
    tinyproto,
)
from protofleet.methods.contract.base import Ask, Reply, seeded
from protofleet.methods.contract.catalog import names
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import (
    SHARDS,
    Shard,
    answer,
    clients_of,
    floats,
    member,
    play,
    same,
    server_of,
    shard,
    tiny,
    with_public_set,
)
from tests.support.few_methods import SHAPES

LOCAL = {"epochs": 2, "batch": 8, "lr": 0.05}
HYPERS = {
    adcol: adcol.Hyper(**LOCAL, server_batch=8),
    apfl: apfl.Hyper(**LOCAL, adaptive=True),
    ditto: ditto.Hyper(**LOCAL),
    fcclplus: fcclplus.Hyper(epochs=2, batch=8, temperature=1.0),
    fedadagrad: fedadagrad.Hyper(**LOCAL),
    fedadam: fedadam.Hyper(**LOCAL),
    fed3r: fed3r.Hyper(least_samples=1),
    fedavg: fedavg.Hyper(**LOCAL),
    fedavgm: fedavgm.Hyper(**LOCAL),
    fedbn: LocalHyper(**LOCAL),
    feddap: feddap.Hyper(**LOCAL, least_samples=1),
    fedcof: fedcof.Hyper(least_samples=1),
    feddistill: feddistill.Hyper(**LOCAL),
    feddyn: feddyn.Hyper(**LOCAL),
    fedga: fedga.Hyper(**LOCAL),
    fedgen: fedgen.Hyper(**LOCAL, server_steps=5),
    fedgh: fedgh.Hyper(**LOCAL, least_samples=1, server_epochs=5),
    fedgram: fedgram.Hyper(least_samples=1),
    fedheal: fedheal.Hyper(**LOCAL),
    fedhp: fedhp.Hyper(**LOCAL, init_steps=20),
    fedkd: fedkd.Hyper(**LOCAL),
    fedlsa: fedlsa.Hyper(**LOCAL, server_epochs=20),
    fedncm: fedncm.Hyper(least_samples=1),
    fednh: fednh.Hyper(**LOCAL),
    fednova: LocalHyper(**LOCAL),
    fedpall: fedpall.Hyper(**LOCAL, server_batch=8),
    fedper: LocalHyper(**LOCAL),
    fedpcl: fedpcl.Hyper(**LOCAL, least_samples=1),
    fedpft: fedpft.Hyper(least_samples=1, server_epochs=2),
    fedplcc: fedplcc.Hyper(**LOCAL, lambda1=1.0),
    fedplvm: fedplvm.Hyper(**LOCAL, lam=1.0),
    fedproto: fedproto.Hyper(**LOCAL),
    fedprox: fedprox.Hyper(**LOCAL),
    fedrep: fedrep.Hyper(**LOCAL),
    fedsa: fedsa.Hyper(**LOCAL),
    fedsr: fedsr.Hyper(**LOCAL),
    fedtgp: fedtgp.Hyper(**LOCAL, server_epochs=5),
    fedyogi: fedadam.Hyper(**LOCAL),
    fml: fml.Hyper(**LOCAL),
    fpl: fpl.Hyper(**LOCAL),
    ghofl: ghofl.Hyper(least_samples=1),
    lgfedavg: LocalHyper(**LOCAL),
    moon: moon.Hyper(**LOCAL),
    perfedavg: perfedavg.Hyper(**LOCAL),
    rucr: rucr.Hyper(**LOCAL, virtual=20, head_epochs=3),
    scaffold: scaffold.Hyper(**LOCAL),
    singleset: LocalHyper(**LOCAL),
    tinyproto: tinyproto.Hyper(**LOCAL, least_samples=1),
}


def name_of(module):
    return module.__name__.rpartition(".")[2]


every_method = pytest.mark.parametrize("module", HYPERS, ids=name_of)

one_of_each_shape = pytest.mark.parametrize(
    "module",
    [m if name_of(m) in SHAPES else pytest.param(m, marks=pytest.mark.slow) for m in HYPERS],
    ids=name_of,
)


def halves(module, hyper=None, **network):
    hyper = hyper or HYPERS[module]
    return server_of(module.METHOD, hyper, **network), clients_of(module.METHOD, hyper, **network)


def outcome(server, clients):
    return [snapshot(h.state()) for h in (server, *clients.values())] + [snapshot(server.payload())]


def equal(a, b):
    return all(same(x, y) for x, y in zip(a, b, strict=True))


# All methods


def test_the_table_contains_all_methods():
    assert sorted(module.__name__.rpartition(".")[2] for module in HYPERS) == names()


@one_of_each_shape
def test_restored_halves_continue_with_the_same_bits(module):
    server, clients = halves(module, norm=True)
    for number in (1, 2):
        play(server, clients, number)
    saved = [snapshot(h.state()) for h in (server, *clients.values())]
    other, others = halves(module, norm=True)
    for half, state in zip((other, *others.values()), saved, strict=True):
        half.restore(state)
    torch.manual_seed(99)
    up = play(other, others, 3)
    assert all(same(a, b) for a, b in zip(up[0].values(), play(server, clients, 3)[0].values(), strict=True))
    assert equal(outcome(other, others), outcome(server, clients))


@one_of_each_shape
def test_a_state_is_a_copy_that_later_rounds_do_not_change(module):
    server, clients = halves(module, norm=True)
    play(server, clients, 1)
    states = [h.state() for h in (server, *clients.values())]
    before = [snapshot(s) for s in states]
    play(server, clients, 2)
    assert equal(states, before)


@every_method
def test_a_device_without_samples_takes_part(module):
    server, clients = halves(module, norm=True)
    nobody = Shard(SHARDS["device-0"].x[:0], SHARDS["device-0"].y[:0])
    late = module.METHOD.Client(tiny(norm=True), nobody, HYPERS[module], 7, "device-9")
    clients["device-9"] = with_public_set(late)
    play(server, clients, 1)
    assert all(v.isfinite().all() for v in server.state().values())


@every_method
def test_a_prediction_has_a_score_for_each_class(module):
    server, clients = halves(module, projector=False)
    play(server, clients, 1)
    for client in clients.values():
        client.receive(server.payload())
        scores = client.predict(client.data.x)
        assert scores.shape == (len(client.data.y), 3) and not scores.isnan().any()


@one_of_each_shape
def test_received_arrays_get_no_gradient(module):
    """It also holds where a device could differentiate through it: its loss changes no received value."""
    server, clients = halves(module, norm=True)
    play(server, clients, 1)
    server.begin(2, [member(name, client) for name, client in sorted(clients.items())])
    story = server.round()
    ask = next(story)
    while True:
        arrays = {name: {k: leaf(v) for k, v in snapshot(ask.payload).items()} for name in clients}
        replies = []
        for name, client in sorted(clients.items()):
            client.begin(2)
            client.receive(arrays[name])
            sent = snapshot(client.run(Ask(ask.phase, arrays[name])))
            assert all(v.grad is None for v in arrays[name].values())
            replies.append(Reply(name, len(client.data.y), sent))
        try:
            ask = story.send(replies)
        except StopIteration:
            return


def leaf(value):
    return value.clone().requires_grad_(value.is_floating_point())


@one_of_each_shape
@pytest.mark.parametrize("projector", [True, False], ids=["projector", "bare"])
def test_a_frozen_backbone_does_not_change_and_is_never_sent(module, projector):
    network = {"frozen": True, "norm": True, "projector": projector}
    server, clients = halves(module, **network)
    first = tiny(norm=True, projector=projector).state_dict()
    backbone = {key for key in first if key.startswith("features.")}
    sent = []
    for number in (1, 2):
        sent += [payload for answers in play(server, clients, number) for payload in answers.values()]
    for half in (server, *clients.values()):
        found = half.model.state_dict()
        assert all(torch.equal(found[key], first[key]) for key in backbone)
    for payload in (
        *sent,
        server.payload(),
        server.state(),
        *(client.state() for client in clients.values()),
    ):
        assert not [name for name in payload if ".features." in name]
    again = module.METHOD.Client(tiny(**network), SHARDS["device-0"], HYPERS[module], 7, "device-0")
    with_public_set(again).restore(snapshot(clients["device-0"].state()))
    again.receive(server.payload())
    clients["device-0"].receive(server.payload())
    x = SHARDS["device-0"].x
    assert torch.equal(again.model.eval().embed(x), clients["device-0"].model.eval().embed(x))


# SingleSet


def test_devices_of_singleset_send_no_arrays_and_learn_alone():
    server, clients = halves(singleset)
    for number in (1, 2):
        assert [dict(p) for p in play(server, clients, number)[0].values()] == [{}, {}, {}]
    assert server.payload() == {}
    alone = tiny()
    for number in (1, 2):
        generator = seeded(7, number, "device-1", "train")
        train(
            alone, SHARDS["device-1"], lambda x, y: F.cross_entropy(alone(x), y), HYPERS[singleset], generator
        )
    assert same(weights_of(alone), weights_of(clients["device-1"].model))


# FedAvg


def test_the_model_of_fedavg_is_the_mean_of_the_models_weighted_by_examples():
    server, clients = halves(fedavg, norm=True)
    up = play(server, clients, 1)[0]
    n = {name: len(c.data.y) for name, c in clients.items()}
    for key, value in server.payload().items():
        if value.is_floating_point():
            mean = sum(n[d] * up[d][key].double() for d in n) / sum(n.values())
            assert_close(value, mean.float())
    assert floats(up["device-0"]) == floats(server.payload()) == {"weights": 40 + 54 + 21 + 33}


def test_the_model_of_fedavg_with_one_device_is_that_of_the_device():
    server, clients = server_of(fedavg.METHOD, HYPERS[fedavg]), clients_of(fedavg.METHOD, HYPERS[fedavg])
    only = {"device-0": clients["device-0"]}
    up = play(server, only, 1)[0]
    assert same(up["device-0"], server.payload())


def test_each_round_starts_from_the_global_model():
    server, clients = halves(fedavg)
    play(server, clients, 1)
    fresh = clients_of(fedavg.METHOD, HYPERS[fedavg])["device-1"]
    ask = next(server.round())
    assert same(answer(fresh, ask, 2), answer(clients["device-1"], ask, 2))


# FedProx


def test_fedprox_adds_half_mu_times_the_squared_distance():
    hyper = fedprox.Hyper(mu=0.3)
    client = clients_of(fedprox.METHOD, hyper)["device-0"]
    client.receive(weights_of(tiny(1)))
    with torch.no_grad():
        for w in client.model.parameters():
            w.add_(0.1)
    count = sum(w.numel() for w in client.model.parameters())
    x, y = client.data.x, client.data.y
    expected = F.cross_entropy(client.model(x), y) + 0.3 / 2 * count * 0.01
    assert_close(client.objective(x, y), expected)


def test_fedprox_with_mu_0_equals_fedavg_and_a_larger_mu_keeps_models_closer():
    def distance(mu):
        server, clients = halves(fedprox, fedprox.Hyper(**LOCAL, mu=mu))
        up = play(server, clients, 1)[0]
        start = weights_of(tiny())
        return up, sum(float((p[k] - start[k]).square().sum()) for p in up.values() for k in p)

    free, far = distance(0.0)
    server, clients = halves(fedavg)
    assert all(same(a, b) for a, b in zip(free.values(), play(server, clients, 1)[0].values(), strict=True))
    assert distance(1.0)[1] < distance(0.1)[1] < far


@pytest.mark.parametrize(
    "mu, problem",
    [(-0.1, "mu is -0.1, it must be at least 0"), (math.inf, "mu is inf, it must be at least 0")],
)
def test_impossible_settings_are_refused_with_value_and_limit(mu, problem):
    with pytest.raises(ValueError) as error:
        fedprox.Hyper(mu=mu)
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    "module", [module for module, hyper in HYPERS.items() if isinstance(hyper, LocalHyper)]
)
def test_a_learning_rate_of_0_is_refused_for_each_method_that_trains(module):
    with pytest.raises(ValueError, match="lr is 0.0, it must be above 0"):
        replace(HYPERS[module], lr=0.0)


def test_the_shards_have_the_classes_that_these_tests_need():
    assert [sorted(set(s.y.tolist())) for s in SHARDS.values()] == [[0, 1, 2], [0, 1], [0, 2]]
    assert shard(0).y.tolist() == [0, 1, 2] * 8
