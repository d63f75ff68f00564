"""FedPall's halves, called directly: two exchanges a round, an adversary on the server, mixtures from devices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from methods import fedpall
from methods.base import Ask, Member, Reply
from methods.bridge import LazyPayload, to_numpy
from methods.cost import Sizes
from methods.local import embed, train
from methods.maths.adversary import MASKS, kl_with_uniform, mixing_share, prototype_infonce
from methods.nets import mlp
from methods.nets.base import Net
from methods.nets.mlp import amplifier, fedpall_classifier
from methods.weights import place_of, snapshot, weights_of
from protocol.store import ObjectStore
from tests.methods.tiny import SHARDS, Shard, answer, clients_of, floats, normal, play, same, server_of, tiny

HYPER = fedpall.Hyper(epochs=2, batch=8, lr=0.05, server_batch=8)
D, C = 6, 3
WIDTH = 32  # of the hidden layers of H, C_g and A in these tests; 512 in the paper


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", WIDTH)


def halves(hyper=HYPER, **network):
    return server_of(fedpall.METHOD, hyper, **network), clients_of(fedpall.METHOD, hyper, **network)


def client_of(device="device-0", data=None, *, norm=False, **changes):
    data = data or SHARDS[device]
    return fedpall.Client(tiny(norm=norm), data, replace(HYPER, **changes), 7, device)


def asks_of(server):
    """The server half's questions from now on, as they were when they were asked."""
    asks, original = [], server.round

    def round():
        story = original()
        ask = next(story)
        while True:
            asks.append(Ask(ask.phase, snapshot(ask.payload), ask.wants))
            try:
                ask = story.send((yield ask))
            except StopIteration:
                return

    server.round = round
    return asks


def only(clients, *numbers):
    return {f"device-{i}": clients[f"device-{i}"] for i in numbers}


def rows(seed=0, n=C):
    return normal(n, D, seed=seed, dtype=torch.float32)


def sure(outputs, seed=5):
    """An amplifier that is sure of itself, where a fresh one hardly prefers anybody."""
    A = amplifier(D, outputs, seed=seed).eval()
    with torch.no_grad():
        A[6].weight.mul_(30)
    return A


def told(client, prototypes=None, labels=range(C), A=None, C_g=None):
    """The client, having received this."""
    payload = {} if A is None else weights_of(A, "amplifier")
    payload |= {} if C_g is None else weights_of(C_g, "classifier")
    if prototypes is not None:
        payload |= {"prototypes": prototypes, "labels": torch.tensor(list(labels))}
    client.receive(snapshot(payload))
    return client


def parameters_of(payload):
    """Without the statistics of batch norms, which no paper counts."""
    return {name: v for name, v in payload.items() if "running" not in name and "tracked" not in name}


# What crosses


def test_a_round_has_two_exchanges():
    server, clients = halves()
    asks = asks_of(server)
    first, second = play(server, clients, 1)
    assert [ask.phase for ask in asks] == ["train", "mix"]
    assert floats(first["device-1"]) == {"prototypes": 2 * D, "labels": 2, "counts": 2}
    assert floats(second["device-1"]) == {"features": 18 * D, "labels": 18}
    assert first["device-2"]["labels"].tolist() == [0, 2] and first["device-2"]["counts"].tolist() == [2, 5]
    assert torch.equal(second["device-2"]["labels"], SHARDS["device-2"].y)
    assert floats(asks[1].payload) == {"prototypes": 3 * D, "labels": 3}
    assert same(asks[1].payload, snapshot(server.payload()))


@pytest.mark.parametrize("device", SHARDS)
@pytest.mark.parametrize("number", [1, 2])
def test_what_crosses_is_what_the_closed_form_says(device, number):
    server, clients = halves()
    asks = asks_of(server)
    for i in range(1, number + 1):
        uploads = play(server, clients, i)
    held = len(set(SHARDS[device].y.tolist()))
    cost = fedpall.cost(Sizes(tiny(), held, examples=len(SHARDS[device].y), clients=3))
    for found, expected in (
        ([u[device] for u in uploads], cost.up),
        ([parameters_of(ask.payload) for ask in asks[-2:]], cost.down),
    ):
        each = [floats(payload) for payload in found]
        assert {kind: sum(f.get(kind, 0) for f in each) for kind in set().union(*each)} == expected


def test_the_closed_form_is_the_papers_with_the_prototypes_that_it_leaves_out(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", 512)
    cost = fedpall.cost(Sizes(Net(nn.Identity(), 2048, 10), held=10, examples=100, clients=5))
    paper = cost.down["classifier"] + cost.down["amplifier"]
    assert paper == 2_634_250 and paper + cost.down["prototypes"] == 2_654_730
    assert cost.up == {"prototypes": 20480, "labels": 110, "counts": 10, "features": 204800}


def test_prototypes_go_down_to_train_only_if_someone_missed_the_last_round():
    server, clients = halves()
    asks = asks_of(server)
    for number, present in enumerate([(0, 1), (0, 1), (0,), (0, 1), (0, 1, 2), (0, 1, 2)], start=1):
        play(server, only(clients, *present), number)
    sent = ["prototypes" in ask.payload for ask in asks if ask.phase == "train"]
    assert sent == [False, False, False, True, True, False]
    assert [len(a.payload["amplifier.6.weight"]) for a in asks if a.phase == "train"] == [2, 2, 2, 2, 3, 3]


def test_devices_train_with_the_prototypes_of_the_round_before_whether_they_are_sent_or_kept():
    server, clients = halves()
    play(server, clients, 1)
    before = snapshot(server.payload())
    for client in clients.values():
        assert torch.equal(client.prototypes, before["prototypes"]) and client.known.all()
        client.begin(2)
        client.receive(snapshot(server.news()))
        assert torch.equal(client.prototypes, before["prototypes"])


def test_the_last_evaluation_brings_prototypes_and_leaves_a_devices_classifier_alone():
    server, clients = halves()
    play(server, clients, 1)
    client = clients["device-0"]
    scores, way = client.predict(client.data.x), client.ways()["prototype"](client.data.x)
    client.receive(snapshot(server.payload()))
    client.settle()
    assert floats(server.payload()) == {"prototypes": 3 * D, "labels": 3}
    assert torch.equal(scores, client.predict(client.data.x))
    assert torch.equal(way, client.ways()["prototype"](client.data.x))


# The device's classifier


def test_the_global_classifier_replaces_the_devices_own_but_for_batch_norms():
    client = client_of(lr=1e-30)  # so that training moves statistics alone
    norms = [part for part in client.H if isinstance(part, nn.BatchNorm1d)]
    with torch.no_grad():
        for norm in norms:
            norm.weight.fill_(3.0)
            norm.bias.fill_(2.0)
            norm.running_mean.fill_(50.0)
    told(client, C_g=fedpall_classifier(D, C, seed=99))
    down = dict(client.C_g)
    client.run(Ask("train"))
    for layer in (0, 3, 6):
        for name, w in client.H[layer].named_parameters():
            assert torch.equal(w, down[f"classifier.{layer}.{name}"])
    assert len(norms) == 2
    for norm in norms:
        assert (norm.weight == 3.0).all() and (norm.bias == 2.0).all()
        assert norm.running_mean.min() > 20.0 and norm.num_batches_tracked == 6  # 24 samples twice, by 8


def test_the_networks_own_head_is_replaced_whole():
    client = client_of(classifier="network", lr=1e-30)
    told(client, C_g=nn.Linear(D, C)).run(Ask("train"))
    assert torch.equal(client.model.head.weight, client.C_g["classifier.weight"])
    server = server_of(fedpall.METHOD, replace(HYPER, classifier="network"))
    assert floats(server.news())["classifier"] == D * C + C


def test_without_the_global_classifier_a_device_keeps_its_own():
    one, other = client_of(use_global_classifier=False), client_of()
    told(one, C_g=fedpall_classifier(D, C, seed=99)).run(Ask("train"))
    told(other).run(Ask("train"))
    assert same(weights_of(one.model), weights_of(other.model))
    told(other, C_g=fedpall_classifier(D, C, seed=99)).run(Ask("train"))
    assert not same(weights_of(one.model), weights_of(other.model))


def test_both_halves_start_from_one_classifier_of_the_papers_shape():
    server, clients = halves()
    first = snapshot(weights_of(server.pupils.C_g))
    assert [tuple(w.shape) for w in server.pupils.C_g.parameters() if w.dim() == 2] == [
        (WIDTH, D),
        (WIDTH, WIDTH),
        (C, WIDTH),
    ]
    assert all(same(first, weights_of(c.model.head)) for c in clients.values())
    assert not same(first, weights_of(fedpall.Server(tiny(), HYPER, 8).pupils.C_g))


def test_a_classifier_of_another_shape_is_refused_in_words():
    client = told(client_of(classifier="network"), C_g=fedpall_classifier(D, C))
    with pytest.raises(RuntimeError, match=r"under classifier: missing \['bias', 'weight'\]"):
        client.run(Ask("train"))


# The device's loss


def naive_kl(scores, direction):
    """One sample at a time, from probabilities."""
    found = []
    for row in scores.double().detach():
        p = [math.exp(s) / sum(math.exp(t) for t in row.tolist()) for s in row.tolist()]
        if direction == "paper":
            found.append(sum(q * math.log(len(p) * q) for q in p))
        else:
            found.append(sum(1 / len(p) * math.log(1 / len(p) / q) for q in p))
    return sum(found) / len(found)


def naive_infonce(z, y, prototypes, tau, form):
    """prototypes: {class: row}. Samples of other classes are left out."""

    def cosine(a, b):
        return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))

    def against(a, b):
        return cosine(a, b) * (float(b.double().norm()) if form == "code" else 1.0)

    found = []
    for row, label in zip(z.detach(), y.tolist(), strict=True):
        if label in prototypes:
            others = [c for c in prototypes if form != "paper" or c != label]
            total = sum(math.exp(against(row, prototypes[c]) / tau) for c in others)
            found.append(math.log(total) - cosine(row, prototypes[label]) / tau)
    return sum(found) / max(len(found), 1)


@pytest.mark.parametrize("use_kl, use_infonce", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("kl, infonce", [("paper", "standard"), ("reverse", "paper"), ("paper", "code")])
@pytest.mark.parametrize("labels", [(0, 1, 2), (1, 2)])
def test_the_devices_loss_is_equation_8(use_kl, use_infonce, kl, infonce, labels):
    switches = {"use_kl": use_kl, "use_infonce": use_infonce, "kl": kl, "infonce": infonce}
    A = sure(4)
    client = told(client_of(mu=0.9, delta=0.4, tau=0.5, **switches), rows()[: len(labels)], labels, A)
    client.model.eval()
    x, y = client.data.x, client.data.y
    z = client.model.embed(x).detach()
    own = dict(zip(labels, rows(), strict=False))
    expected = float(F.cross_entropy(client.model.head(z), y).detach())
    expected += 0.9 * naive_kl(A(z), kl) if use_kl else 0.0
    expected += 0.4 * naive_infonce(z, y, own, 0.5, infonce) if use_infonce else 0.0
    assert float(client.objective(x, y).detach()) == pytest.approx(expected, abs=1e-5)


def test_before_anything_comes_the_loss_is_cross_entropy():
    client = client_of()
    client.model.eval()
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y))


@pytest.mark.parametrize("form", ["standard", "paper", "code"])
def test_infonce_with_one_known_class_or_none_pulls_nobody_away_from_others(form):
    z, y = normal(4, D).requires_grad_(), torch.tensor([0, 0, 2, 1])
    for known in ([True, False, False], [False, False, False]):
        loss = prototype_infonce(z, y, normal(C, D, seed=1), torch.tensor(known), 0.5, form=form)
        slope = torch.autograd.grad(loss, z)[0]
        assert loss.isfinite() and slope.isfinite().all()
        assert form == "code" or (float(loss.detach()) == pytest.approx(0.0, abs=1e-12) and not slope.any())


def test_a_row_of_an_unknown_class_is_never_read():
    z, y, known = normal(5, D), torch.tensor([0, 1, 2, 2, 0]), torch.tensor([True, False, True])
    prototypes = normal(C, D, seed=1)
    expected = prototype_infonce(z, y, prototypes, known, 0.5)
    prototypes[1] = math.nan
    assert_close(prototype_infonce(z, y, prototypes, known, 0.5), expected)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_amplifier_is_frozen_and_takes_its_statistics_where_the_setting_says(mode):
    A = sure(4)
    client = told(client_of(amplifier=mode, use_infonce=False), A=A)
    client.model.eval()
    x, y = client.data.x, client.data.y
    client.objective(x, y).backward()
    assert all(w.grad is None for w in client.A.parameters())
    assert all(w.grad is not None for w in client.model.parameters())
    A.train(mode == "train")
    z = client.model.embed(x).detach()
    expected = float(F.cross_entropy(client.model(x), y).detach()) + 0.7 * naive_kl(A(z), "paper")
    told(client, A=sure(4))
    assert float(client.objective(x, y).detach()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kl", ["paper", "reverse"])
def test_the_adversarial_loss_makes_devices_harder_to_tell_apart(kl):
    A = sure(2)

    def sureness(**changes):
        client = told(client_of(epochs=20, kl=kl, **changes), A=A)
        client.run(Ask("train"))
        return float(kl_with_uniform(A(embed(client.model, client.data.x))).detach())

    assert 2 * sureness(mu=2.0) < sureness(use_kl=False)


def test_the_contrast_gathers_features_around_their_prototypes():
    def gap(**changes):
        client = told(client_of(epochs=20, tau=0.2, **changes), rows(3))
        client.run(Ask("train"))
        z = embed(client.model, client.data.x)
        return float(prototype_infonce(z, client.data.y, rows(3), client.known, 0.2))

    assert 2 * gap(delta=1.0) < gap(use_infonce=False)


FORMS = ("standard", "paper", "code")
DTYPES = (torch.float16, torch.float32, torch.float64)


@given(
    st.integers(0, 2**20),
    st.sampled_from(DTYPES),
    st.sampled_from((0.0, 1e-3, 1.0, 1e3)),
    st.lists(st.booleans(), min_size=C, max_size=C),
)
@settings(max_examples=60, deadline=None)
def test_losses_and_gradients_are_finite_wherever_features_lie(seed, dtype, scale, known):
    z = (scale * normal(5, D, seed=seed)).to(dtype).requires_grad_()
    z.data[0] = 0.0
    y, prototypes = torch.tensor([0, 1, 2, 0, 1]), scale * rows(seed + 1)
    found = [kl_with_uniform(z, direction=d) for d in ("paper", "reverse")]
    found += [prototype_infonce(z, y, prototypes, torch.tensor(known), 0.1, form=f) for f in FORMS]
    for loss in found:
        (slope,) = torch.autograd.grad(loss, z)
        assert loss.isfinite() and slope.isfinite().all()
    assert all(loss >= -1e-6 for loss in found[:2])


def test_the_divergence_is_zero_for_an_unsure_amplifier_and_for_one_device():
    for logits in (torch.full((4, 3), 7.0), normal(4, 1)):
        for direction in ("paper", "reverse"):
            loss = kl_with_uniform(logits.requires_grad_(), direction=direction)
            assert loss.detach().abs() < 1e-6 and torch.autograd.grad(loss, logits)[0].abs().max() < 1e-6
    sure = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float16)
    assert float(kl_with_uniform(sure)) == pytest.approx(math.log(3))


# What a device sends


@pytest.mark.parametrize("norm", [False, True])
def test_local_prototypes_are_the_features_after_training(norm):
    client = client_of(norm=norm)
    sent = client.run(Ask("train"))
    z = embed(client.model, client.data.x)
    for row, label in zip(sent["prototypes"], range(C), strict=True):
        assert_close(row, z[client.data.y == label].mean(dim=0))


def test_normalised_local_prototypes_point_the_same_way():
    plain, made = (client_of(normalise_local_protos=flag).run(Ask("train")) for flag in (False, True))
    assert_close(made["prototypes"], F.normalize(plain["prototypes"], dim=1))


def test_features_of_the_training_mode_have_the_statistics_of_their_batch():
    client = client_of("device-1", norm=True, features="train", normalise_local_protos=False)
    client.run(Ask("train"))
    before = snapshot(weights_of(client.model))
    z = client.features()
    assert same(before, weights_of(client.model))
    layers, expected = client.model.features, []
    for part in torch.split(client.data.x, 8):
        pre = layers[0](part)
        deviation = (pre.var(dim=0, unbiased=False) + layers[1].eps).sqrt()
        normed = (pre - pre.mean(dim=0)) / deviation * layers[1].weight + layers[1].bias
        expected.append(client.model.projector(normed.relu()))
    assert_close(z, torch.cat(expected).detach(), rtol=1e-4, atol=1e-5)
    told(client, rows())
    assert torch.equal(client.features(), z)  # "mix" mixes those whose means went up


def mixture(client, **changes):
    """(features sent, features, their prototypes)"""
    client.hyper = replace(client.hyper, **changes)
    sent = client.run(Ask("mix"))["features"]
    return sent, embed(client.model, client.data.x), client.prototypes[client.data.y]


def test_a_mixture_is_equation_9_with_one_share_a_round():
    client, shares = told(client_of(), rows()), []
    for number in range(1, 9):
        client.begin(number)
        sent, z, G = mixture(client, beta=1.0)
        found = ((sent - G) / (z - G)).median()
        assert_close(sent, found * z + (1 - found) * G, rtol=1e-4, atol=1e-4)
        shares.append(round(float(found), 4))
    assert len(set(shares)) > 3 and all(0.8 <= a <= 1.0 and abs(a - round(a, 2)) < 2e-4 for a in shares)


def test_shares_fill_their_interval_and_have_the_decimals_asked_for():
    generator = torch.Generator().manual_seed(0)
    coarse = [mixing_share(0.8, 1.0, 2, generator) for _ in range(2000)]
    assert min(coarse) == 0.8 and max(coarse) == 1.0 and len(set(coarse)) == 21
    fine = [mixing_share(0.2, 0.4, 15, generator) for _ in range(2000)]
    assert 0.2 <= min(fine) < 0.201 and 0.399 < max(fine) <= 0.4 and len(set(fine)) == 2000


@pytest.mark.parametrize("kind", ["bernoulli", "exact"])
def test_the_mask_leaves_the_same_numbers_of_every_sample_of_a_round(kind):
    client, kept = told(client_of(), rows()), set()
    for number in range(1, 13):
        client.begin(number)
        sent, z, _ = mixture(client, mask=kind, beta=0.5, alpha_low=1.0)
        left = (sent != 0).any(dim=0)
        assert torch.equal(sent, torch.where(left, z, 0.0))
        kept.add(tuple(left.tolist()))
    assert len(kept) > 3
    assert {sum(k) for k in kept} == {3} if kind == "exact" else len({sum(k) for k in kept}) > 1


def test_masks_keep_the_share_beta():
    many = [MASKS["bernoulli"](1000, 0.9, torch.Generator().manual_seed(i)) for i in range(20)]
    assert torch.stack(many).mean() == pytest.approx(0.9, abs=0.01)
    assert len({int(m.sum()) for m in many}) > 5
    assert all(mask(50, 1.0, torch.Generator()).all() for mask in MASKS.values())


def test_noise_is_added_where_nothing_is_mixed_or_masked():
    client = told(client_of(), rows())
    sent, z, _ = mixture(client, noise=0.5, beta=1.0, alpha_low=1.0)
    assert (sent - z).std() == pytest.approx(0.5, abs=0.1)
    assert not torch.equal(sent, mixture(client, noise=0.0)[0])


def test_a_sample_whose_class_has_no_prototype_is_not_mixed():
    client = told(client_of(), rows()[:2], (0, 2))
    sent, z, _ = mixture(client, beta=1.0, alpha_low=0.8, alpha_high=0.8)
    bare = client.data.y == 1
    assert torch.equal(sent[bare], z[bare])
    assert_close(sent[client.data.y == 2], 0.8 * z[client.data.y == 2] + 0.2 * rows()[1])


def test_draws_differ_between_devices_and_rounds_and_not_between_runs():
    def sent(device, number):
        client = told(client_of(device, SHARDS["device-0"], beta=0.5), rows())
        client.begin(number)
        torch.manual_seed(number + len(device))
        return client.run(Ask("mix"))["features"]

    one = sent("device-0", 1)
    assert torch.equal(one, sent("device-0", 1))
    assert not torch.equal(one, sent("device-1", 1)) and not torch.equal(one, sent("device-0", 2))


# The server: prototypes


def prototypes_from(device, rows, labels, counts):
    sent = {"prototypes": rows, "labels": torch.tensor(labels), "counts": torch.tensor(counts)}
    return Reply(device, sum(counts), sent)


def test_global_prototypes_are_means_weighted_by_examples():
    server, a, b = server_of(fedpall.METHOD, HYPER), rows(0, 2), rows(1, 1)
    server.merge([prototypes_from("a", a, [0, 1], [30, 2]), prototypes_from("b", b, [0], [10])])
    assert server.known.tolist() == [True, True, False]
    assert_close(server.prototypes[:2], torch.stack([(30 * a[0] + 10 * b[0]) / 40, a[1]]))
    assert server.payload()["labels"].tolist() == [0, 1]
    server.merge([prototypes_from("b", b, [2], [1])])  # nobody holds 0 and 1
    assert_close(server.prototypes, torch.stack([(30 * a[0] + 10 * b[0]) / 40, a[1], b[0]]))
    assert server.known.all()


def test_a_device_that_names_a_class_twice_is_pooled():
    server, a = server_of(fedpall.METHOD, HYPER), rows()
    server.merge([prototypes_from("a", a, [1, 1, 0], [1, 3, 5])])
    assert_close(server.prototypes[1], (a[0] + 3 * a[1]) / 4)


# The server: C_g and A


def uploads(lengths, seed=0):
    """Mixed features of devices, told apart by their fourth number, classes by the first three."""
    replies = []
    for i, n in enumerate(lengths):
        y = torch.arange(n) % C
        features = 0.3 * rows(seed + i, n)
        features[:, 3] += 2.0 * i
        features[torch.arange(n), y] += 2.0
        replies.append(Reply(f"device-{i}", n, {"features": features, "labels": y}))
    return replies


def fitted(server, replies, number=1):
    server.begin(number, [Member(r.device, r.examples) for r in replies])
    server.pupils.enrol(r.device for r in replies)
    server.figures = server.pupils.fit(replies, server.hyper.server, server.generator("fit"))
    return server


def test_the_servers_training_is_that_of_each_network_alone_on_all_features():
    replies = uploads([13, 0, 8, 4])  # 25: the last batch is one sample
    server = server_of(fedpall.METHOD, replace(HYPER, server_epochs=2))
    server.pupils.enrol(r.device for r in replies)
    start = snapshot(server.pupils.weights())
    fitted(server, replies)
    x = torch.cat([r.payload["features"] for r in replies])
    y = torch.cat([r.payload["labels"] for r in replies])
    owner = torch.tensor([0] * 13 + [2] * 8 + [3] * 4)
    for name, alone, targets in (
        ("classifier", fedpall_classifier(D, C), y),
        ("amplifier", amplifier(D, 4), owner),
    ):
        alone.load_state_dict({k.partition(".")[2]: v for k, v in start.items() if k.startswith(name)})
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
        orders = server.generator("fit")
        torch.randint(1 << 62, (), generator=orders)  # for layers that draw
        for _ in range(2):
            for batch in torch.split(torch.randperm(25, generator=orders), 8):
                alone.train(len(batch) > 1)
                optimizer.zero_grad()
                F.cross_entropy(alone(x[batch]), targets[batch]).backward()
                optimizer.step()
        for key, value in weights_of(alone, name).items():
            assert_close(server.pupils.weights()[key], value, msg=lambda m, key=key: f"{key}: {m}")


def test_the_amplifier_learns_who_sent_what_and_the_classifier_what_it_is():
    server = server_of(fedpall.METHOD, replace(HYPER, server_epochs=30))
    replies = uploads([24, 24, 24])
    fitted(server, replies)
    C_g, A = server.pupils.C_g.eval(), server.pupils.A.eval()
    for i, reply in enumerate(replies):
        assert (A(reply.payload["features"]).argmax(1) == i).float().mean() > 0.9
        assert (C_g(reply.payload["features"]).argmax(1) == reply.payload["labels"]).float().mean() > 0.9
    assert server.monitor()["loss.amplifier"] < 0.3 and server.monitor()["loss.classifier"] < 0.3


def test_the_ledger_gets_the_mean_losses_of_the_last_epoch():
    server = server_of(fedpall.METHOD, replace(HYPER, server_lr=1e-30, server_epochs=3))
    assert server.monitor() == {}
    replies = uploads([8, 8])
    server.pupils.enrol(r.device for r in replies)
    x, y = (torch.cat([r.payload[n] for r in replies]) for n in ("features", "labels"))
    fitted(server, replies)
    order = server.generator("fit")
    torch.randint(1 << 62, (), generator=order)
    for _ in range(3):
        batches = torch.split(torch.randperm(16, generator=order), 8)
    C_g = server.pupils.C_g.train()
    expected = sum(float(F.cross_entropy(C_g(x[b]), y[b]).detach()) for b in batches) / 2
    assert server.monitor()["loss.classifier"] == pytest.approx(expected, rel=1e-5)
    assert server.monitor()["features"] == 16.0
    assert sorted(server.monitor()) == ["features", "loss.amplifier", "loss.classifier"]


def test_figures_are_of_this_round_alone():
    server, clients = halves()
    play(server, clients, 1)
    assert server.monitor()["features"] == 24 + 18 + 7
    server.begin(2, [])
    next(server.round())
    assert server.monitor() == {}


@pytest.mark.parametrize("lengths", [[1], [9], [0, 0], [0, 1, 0]])
def test_few_features_are_enough(lengths):
    server = server_of(fedpall.METHOD, HYPER)
    before = snapshot(server.pupils.weights())
    fitted(server, uploads(lengths))
    state = server.state()
    assert all(v.isfinite().all() for v in state.values())
    moved = not torch.equal(before["classifier.0.weight"], state["classifier.0.weight"])
    assert moved == (sum(lengths) > 0)
    seen = -(-sum(lengths) // 8) - (sum(lengths) % 8 == 1)  # batches of one leave the statistics alone
    assert int(state["classifier.1.num_batches_tracked"]) == seen


def test_features_are_read_from_the_disk_row_by_row(tmp_path):
    replies, read = uploads([13, 0, 12]), []
    store = ObjectStore(tmp_path, durable=False)

    def lazy(reply):
        body = store.open(store.put(to_numpy(reply.payload)).object)
        original = body._read
        body._read = lambda start, stop: read.append(stop - start) or original(start, stop)
        return Reply(reply.device, reply.examples, LazyPayload(body))

    one, other = (server_of(fedpall.METHOD, HYPER) for _ in range(2))
    fitted(one, replies)
    fitted(other, [lazy(reply) for reply in replies])
    assert same(one.state(), other.state())
    assert sorted(read) == sorted([13 * 8, 0, 12 * 8, *[D * 4] * 25])  # labels once, a row at a time


def test_the_optimizer_goes_on_from_the_round_before():
    def after(hyper, calls):
        server = server_of(fedpall.METHOD, hyper)
        for number in range(1, calls + 1):
            fitted(server, uploads([8, 8]), number)
        return server

    rolling = after(HYPER, 2)
    still = after(HYPER, 1)
    still.pupils.momenta = {}
    fitted(still, uploads([8, 8]), 2)
    assert not same(rolling.state(), still.state())
    fresh = after(replace(HYPER, server_momentum=0.0), 2)
    assert not any(v.any() for v in fresh.pupils.momenta.values())


def test_a_device_that_joins_gets_a_further_output_and_numbers_stay():
    server = server_of(fedpall.METHOD, HYPER)
    b, c = (replace(r, device=name) for r, name in zip(uploads([8, 8]), "bc", strict=True))
    fitted(server, [b, c])
    old, momentum = server.pupils.A, server.pupils.momenta["amplifier.6.weight"].clone()
    server.begin(2, [Member("a", 3), Member("c", 8)])
    story = server.round()
    next(story)
    grown = server.pupils.A
    assert server.pupils.devices == ["b", "c", "a"]
    assert torch.equal(grown[6].weight[:2], old[6].weight) and grown[6].weight.shape == (3, WIDTH)
    assert grown[6].weight[2].abs().max() > 0
    assert same(*({k: v for k, v in weights_of(A).items() if "6." not in k} for A in (old, grown)))
    optimizer = server.pupils._optimizer(nn.ModuleDict({"amplifier": grown}), HYPER.server)
    buffer = optimizer.state[grown[6].weight]["momentum_buffer"]
    assert torch.equal(buffer[:2], momentum) and not buffer[2].any()
    server.hyper = replace(HYPER, server_epochs=40)
    fitted(server, [replace(b, device="a"), c], 3)
    assert (grown.eval()(b.payload["features"]).argmax(1) == 2).float().mean() > 0.8
    assert (grown(c.payload["features"]).argmax(1) == 1).float().mean() > 0.8


def test_the_seed_decides_the_weights_of_further_outputs():
    def grown(seed):
        server = fedpall.Server(tiny(), HYPER, seed)
        server.pupils.enrol("ba")
        torch.manual_seed(0)
        server.pupils.enrol("acb")
        assert server.pupils.devices == ["a", "b", "c"]
        return server.pupils.A

    assert same(weights_of(grown(1)), weights_of(grown(1)))
    assert not torch.equal(grown(1)[6].weight[2], grown(2)[6].weight[2])


def test_outputs_may_be_set_aside_for_devices_to_come():
    server, clients = halves(replace(HYPER, clients=5))
    play(server, only(clients, 0), 1)
    assert server.pupils.A[6].weight.shape == (5, WIDTH)
    fitted(server, uploads([2] * 7), 2)  # and more than that are no error
    assert server.pupils.A[6].weight.shape == (7, WIDTH)


# Hostile answers


def hostile(server, number, features, labels, prototypes=None):
    """A round in which a device sends this, well-formed."""
    server.begin(number, [Member("a", 40), Member("b", 40)])
    story = server.round()
    ask = next(story)
    first = prototypes_from("a", rows() if prototypes is None else prototypes, [0, 1, 2], [1, 1, 1])
    assert ask.problem_with(first.payload) is None
    ask = story.send([first, prototypes_from("b", rows(1), [0, 1, 2], [9, 9, 9])])
    sent = {"features": features, "labels": labels}
    assert ask.problem_with(sent) is None
    with pytest.raises(StopIteration):
        story.send([Reply("a", 40, sent), replace(uploads([30])[0], device="b")])


@pytest.mark.parametrize("classifier", ["paper", "network"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda z: torch.full_like(z, fedpall.FARTHEST),
        lambda z: torch.full_like(z, -fedpall.FARTHEST),
        lambda z: z.sign() * fedpall.FARTHEST,
        torch.zeros_like,
    ],
)
def test_the_state_stays_finite_whatever_a_device_sends(spoil, classifier):
    server = server_of(fedpall.METHOD, replace(HYPER, classifier=classifier, server_epochs=4))
    for number in (1, 2, 3):
        labels = (torch.arange(40) * number) % C
        hostile(server, number, spoil(rows(number, 40)), labels, spoil(rows(number)))
    assert all(v.isfinite().all() for v in server.state().values())
    client = client_of(classifier=classifier)
    client.receive(snapshot(server.news() | dict(server.payload())))
    z = client.model.embed(client.data.x)
    assert (
        kl_with_uniform(client.A.eval()(z)).isfinite()
        and client.objective(client.data.x, client.data.y).isfinite()
    )


def wants(phase):
    server = server_of(fedpall.METHOD, HYPER)
    server.begin(1, [Member("a", 40), Member("b", 7)])
    return Ask(phase, {}, server.feature_wants() if phase == "mix" else server.prototype_wants())


@pytest.mark.parametrize(
    "features, labels, problem",
    [
        (torch.full((2, D), 2e6), [0, 1], "features has 2e+06, above 1e+06"),
        (torch.full((2, D), math.nan), [0, 1], "features is not finite"),
        (torch.zeros(2, D), [0, 3], "labels has 3, above 2"),
        (torch.zeros(2, D), [0], "labels is (1,), not ('n',) with n = 2"),
        (torch.zeros(41, D), [0] * 41, "features is (41, 6), over the limit of 40 for n"),
    ],
)
def test_impossible_features_are_refused(features, labels, problem):
    sent = {"features": features, "labels": torch.tensor(labels)}
    assert wants("mix").problem_with(sent) == problem


def test_impossible_prototypes_are_refused():
    far = prototypes_from("a", torch.full((1, D), -2e6), [0], [1]).payload
    assert wants("train").problem_with(far) == "prototypes has -2e+06, below -1e+06"
    many = prototypes_from("a", rows(0, 4), [0, 1, 2, 2], [1] * 4).payload
    assert wants("train").problem_with(many) == "prototypes is (4, 6), over the limit of 3 for held"


# Whole rounds


def outcome(server, clients):
    return [snapshot(h.state()) for h in (server, *clients.values())] + [snapshot(server.payload())]


@pytest.mark.parametrize("changes", [{}, {"features": "train", "amplifier": "train"}])
def test_restored_halves_go_on_bit_by_bit(changes):
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
    assert all(same(a, b) for a, b in zip(saved, before, strict=True))  # a state does not move


def test_a_server_restored_to_an_earlier_round_forgets_devices_and_outputs():
    server, clients = halves()
    start = server.state()
    play(server, only(clients, 0), 1)
    one = server.state()
    play(server, clients, 2)
    assert server.pupils.A[6].weight.shape == (3, WIDTH)
    server.restore(one)
    assert same(server.state(), one) and server.pupils.devices == ["device-0"]
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


def test_a_device_that_sits_out_a_round_keeps_its_model_and_gets_what_it_missed():
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


def test_a_cohort_of_one_device_and_a_cohort_without_samples_are_rounds_too():
    server, clients = halves()
    for number in (1, 2):
        play(server, only(clients, 1), number)
    assert server.known.tolist() == [True, True, False] and server.pupils.A[6].weight.shape == (1, WIDTH)
    empty = {"device-9": client_of("device-9", Shard(SHARDS["device-0"].x[:0], SHARDS["device-0"].y[:0]))}
    before = server.prototypes.clone()
    play(server, empty, 3)
    assert torch.equal(server.prototypes, before) and server.monitor()["features"] == 0.0
    assert all(v.isfinite().all() for v in server.state().values())
    alone, nobody = server_of(fedpall.METHOD, HYPER), client_of("device-9", empty["device-9"].data)
    play(alone, {"device-9": nobody}, 1)
    assert alone.payload() == {} and nobody.ways() == {}


def test_devices_of_different_networks_learn_together():
    assert fedpall.METHOD.mixed_networks and fedpall.METHOD.reports == "personal"
    server, clients = halves(replace(HYPER, epochs=10))
    clients["device-1"] = client_of("device-1", norm=True, epochs=10)
    for number in (1, 2, 3):
        play(server, clients, number)
    for client in clients.values():
        client.model.eval()
        assert (client.predict(client.data.x).argmax(1) == client.data.y).float().mean() > 0.8


def test_without_both_losses_and_the_global_classifier_every_device_learns_alone():
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


def test_the_other_way_to_predict_is_the_nearest_prototype_by_angle():
    client = client_of()
    assert client.ways() == {}
    told(client, torch.stack([5 * rows()[0], rows()[2]]), (0, 2))
    z = client.model.embed(client.data.x).detach()
    scores = client.ways()["prototype"](client.data.x)
    for i, row in enumerate((rows()[0], None, rows()[2])):
        if row is None:
            assert (scores[:, i] == -math.inf).all()
        else:
            assert_close(scores[:, i], F.cosine_similarity(z, row[None]))
    assert torch.equal(client.predict(client.data.x), client.model(client.data.x))
    assert torch.equal(client.embedding(client.data.x), client.model.embed(client.data.x))


def test_everything_that_a_half_makes_is_where_its_model_is():
    client = fedpall.Client(tiny().to("meta"), SHARDS["device-0"], HYPER, 7, "device-0")
    server = fedpall.Server(tiny().to("meta"), HYPER, 7)
    server.pupils.enrol("ab")
    made = [client.H, client.A, server.pupils.C_g, server.pupils.A]
    assert {place_of(part).type for part in made} == {"meta"}
    assert {t.device.type for t in (client.prototypes, client.known, server.prototypes)} == {"meta"}


@pytest.mark.parametrize(
    "setting, value, limit",
    [
        ("classifier", "mlp", "one of paper, network"),
        ("mu", math.nan, "at least 0"),
        ("delta", -0.1, "at least 0"),
        ("tau", 0.0, "above 0"),
        ("kl", "forward", "one of paper, reverse"),
        ("infonce", "no", "one of standard, paper, code"),
        ("alpha_low", 1.1, "between 0 and 1"),
        ("alpha_high", 0.7, "between alpha_low = 0.8 and 1"),
        ("alpha_round", 16, "between 0 and 15"),
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
def test_impossible_settings_name_value_and_limit(setting, value, limit):
    shown = repr(value) if isinstance(value, str) else value
    with pytest.raises(ValueError) as error:
        fedpall.Hyper(**{setting: value})
    assert str(error.value) == f"{setting} is {shown}, it must be {limit}"


def test_defaults_are_those_of_digits_and_of_the_servers_optimizer():
    hyper = fedpall.Hyper()
    assert (hyper.epochs, hyper.batch, hyper.lr, hyper.momentum, hyper.weight_decay) == (5, 64, 0.01, 0, 0)
    server = hyper.server
    assert (server.epochs, server.batch, server.lr) == (1, 64, 0.01)
    assert (server.momentum, server.weight_decay, server.clip) == (0.9, 1e-5, None)
    assert (hyper.mu, hyper.delta, hyper.tau, hyper.beta) == (0.7, 0.3, 3.0, 0.9)
