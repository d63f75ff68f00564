"""Tests of FedPLVM against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedavg, fedplvm
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.parts.clusters import clusters_in, local_clusters
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.plain import LOCAL, averaged, fit, halves, network, order_of, played
from tests.methods.plain_finch import MANY, ROUNDS, WITHOUT_2, cluster_means, global_prototypes
from tests.methods.test_oracles import CASES
from tests.methods.tiny import CLASSES, Shard, answer, normal, play, same

HYPER = fedplvm.Hyper(**{**LOCAL, "epochs": 1}, lam=0.7, alpha=0.5, tau=0.2)


def similarity(z, rows, hyper):
    cosine = F.cosine_similarity(z.unsqueeze(1), torch.stack(rows), dim=2)
    if hyper.negative == "signed":
        return cosine.sign() * cosine.abs().clamp(min=1e-6) ** hyper.alpha
    return cosine.clamp(min=1e-6) ** hyper.alpha


def extra(z, y, table, hyper):
    """Return lam * (L_alpha + L_corr) of a batch."""
    e = {c: torch.exp(similarity(z, rows, hyper) / hyper.tau).sum(1) for c, rows in table.items()}
    terms = []
    for c, rows in table.items():
        cosine = F.cosine_similarity(z, torch.stack(rows).mean(0).unsqueeze(0))
        terms.append((-torch.log(e[c] / sum(e.values())) + 2 * (cosine - 1) ** 2)[y == c])
    return hyper.lam * torch.cat(terms).sum() / max(len(torch.cat(terms)), 1) if terms else 0.0


def plain(hyper, devices):
    table, sent, last = {}, [], [0]

    def train(model, device, number):
        nonlocal table
        if number > last[0]:  # At the first device of a round, the table of the round before has arrived.
            table = global_prototypes(sent, table)
            sent.clear()
            last[0] = number
        data = devices[device]

        def loss(x, y):
            z = model.embed(x)
            return F.cross_entropy(model.head(z), y) + extra(z, y, table, hyper)

        fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(device, number), loss)
        with torch.no_grad():
            z = model.eval().embed(data.x)
        sent.append({c: cluster_means(z[data.y == c]) for c in sorted(set(data.y.tolist()))})

    shared, _ = averaged(ROUNDS, train, data=devices)
    return shared, global_prototypes(sent, table)


def by_class(payload):
    rows, labels = payload["prototypes"], payload["labels"].tolist()
    return {c: [rows[i] for i, label in enumerate(labels) if label == c] for c in sorted(set(labels))}


@pytest.mark.parametrize("devices", [MANY, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("negative", ["clamp", "signed"])
def test_four_rounds_equal_those_of_a_plain_loop(devices, negative):
    hyper = replace(HYPER, negative=negative)
    server, _ = played(fedplvm, hyper, devices, ROUNDS)
    shared, table = plain(hyper, devices)
    payload = server.payload()
    for key, value in shared.items():
        assert_close(payload[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    found = by_class(payload)
    assert found.keys() == table.keys() == ({0, 1, 2} if devices is MANY else {0, 1})
    for label, rows in table.items():
        assert_close(torch.stack(found[label]), torch.stack(rows), rtol=1e-8, atol=1e-10)
    assert max(map(len, table.values())) > 1, "with one row for each class, the test does not use FINCH"


def test_the_contrast_equals_the_oracle_without_weights():
    given, expected = CASES["fedplcc.contra.w1"]["inputs"], CASES["fedplcc.contra.w1"]["expected"]
    rows, labels = zip(*((g, int(c)) for c, table in given["prototypes"].items() for g in table), strict=True)
    z, y = torch.tensor(given["features"]).double(), torch.tensor(given["labels"])
    client = halves(fedplvm, replace(HYPER, lam=1.0, alpha=given["alpha"], tau=given["tau"]))[1]["device-0"]
    client.model.classes, client.model.embedding_size = max(labels) + 1, z.shape[1]
    known = {"prototypes": torch.tensor(rows).double(), "labels": torch.tensor(labels)}
    G = clusters_in(known, client.model)
    corrected = [
        2 * (F.cosine_similarity(row, G.rows[G.labels == c].mean(0), dim=0) - 1) ** 2
        for row, c in zip(z, y, strict=True)
    ]
    wanted = expected["loss"] + torch.stack(corrected).mean()
    assert_close(client.towards(G, z, y), wanted, rtol=1e-8, atol=1e-8)


def test_only_the_first_round_equals_fedavg():
    (server, clients), (other, others) = halves(fedplvm, HYPER), halves(fedavg, HYPER)
    for number, alike in ((1, True), (2, False)):
        play(server, clients, number)
        play(other, others, number)
        assert same(weights_of(server.model), weights_of(other.model)) == alike


def test_losses_and_gradients_are_finite_for_negative_and_undefined_cosines():
    client = halves(fedplvm, replace(HYPER, alpha=0.25))[1]["device-0"]
    rows = normal(4, 6)
    G = clusters_in({"prototypes": rows, "labels": torch.tensor([0, 0, 1, 2])}, client.model)
    z = torch.cat([rows, -rows, torch.zeros(1, 6).double()]).requires_grad_()
    loss = client.towards(G, z, torch.arange(len(z)) % 3)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.isfinite() and gradient.isfinite().all() and gradient.abs().sum() > 0


def test_samples_of_a_class_without_prototypes_are_not_part_of_the_mean():
    client = halves(fedplvm, HYPER)[1]["device-0"]
    G = clusters_in({"prototypes": normal(2, 6), "labels": torch.tensor([0, 0])}, client.model)
    z, y = normal(4, 6, seed=1), torch.tensor([0, 2, 2, 0])
    assert_close(client.towards(G, z, y), client.towards(G, z[[0, 3]], y[[0, 3]]))
    assert client.towards(G, z, torch.full((4,), 2)) == 0


def test_a_class_that_no_device_of_a_round_holds_keeps_its_rows():
    server, clients = halves(fedplvm, HYPER)
    play(server, {name: clients[name] for name in ("device-0", "device-2")}, 1)
    before = by_class(server.payload())
    play(server, {"device-3": clients["device-3"]}, 2)  # device-3 holds only class 1.
    after = by_class(server.payload())
    assert all(map(torch.equal, before[0] + before[2], after[0] + after[2]))
    assert not torch.equal(torch.stack(before[1]), torch.stack(after[1]))


def test_the_order_of_answers_changes_no_bit():
    tables = []
    for turn in (1, -1):
        server, clients = halves(fedplvm, HYPER)
        server.begin(1, [Member(name, len(c.data.y)) for name, c in clients.items()])
        story = server.round()
        ask = next(story)
        replies = [Reply(name, len(c.data.y), answer(c, ask, 1)) for name, c in clients.items()]
        with pytest.raises(StopIteration):
            story.send(replies[::turn])
        tables.append(server.payload())
    assert same(*tables)


def test_received_arrays_get_no_gradient():
    server, clients = halves(fedplvm, HYPER)
    play(server, clients, 1)
    payload = snapshot(server.payload())
    floats = [v.requires_grad_() for v in payload.values() if v.is_floating_point()]
    client = clients["device-0"]
    client.receive(payload)
    client.objective(client.data.x, client.data.y).backward()
    assert all(v.grad is None for v in floats)


def test_a_restored_server_continues_with_the_same_bits():
    server, clients = played(fedplvm, HYPER)
    again = fedplvm.METHOD.Server(network(), HYPER, 7)
    again.restore(snapshot(server.state()))
    assert same(again.state(), server.state()) and same(again.payload(), server.payload())
    play(server, clients, 5)
    play(again, clients, 5)
    assert same(again.payload(), server.payload())


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 21])
def test_an_honest_device_sends_no_more_rows_than_the_limit(n):
    y = torch.randint(CLASSES, (n,), generator=torch.Generator().manual_seed(n))
    client = fedplvm.METHOD.Client(network(), Shard(normal(n, 4, seed=n), y), HYPER, 7, "a")
    server, _ = halves(fedplvm, HYPER)
    server.begin(1, [Member("a", n)])
    ask = next(server.round())
    sent = answer(client, ask, 1)
    assert ask.problem_with(sent, n) is None
    most = min(n, (n + CLASSES) // 2)

    def problem(rows, value=1.0):
        table = {"prototypes": torch.full((rows, 6), value).double(), "labels": torch.zeros(rows).long()}
        return ask.problem_with({**sent, **table}, n)

    assert problem(most) is None and problem(most + 1) is not None
    assert "above 1e+06" in problem(1, 1.1e6).message and "below -1e+06" in problem(1, -1.1e6).message


def test_prototypes_are_computed_in_evaluation_mode_from_each_sample():
    client = halves(fedplvm, HYPER)[1]["device-0"]
    rows, labels, counts = local_clusters(client.model.train(), client.data)
    with torch.no_grad():
        z = client.model.eval().embed(client.data.x)
    wanted = [row for c in range(CLASSES) for row in cluster_means(z[client.data.y == c])]
    assert_close(rows, torch.stack(wanted))
    assert int(counts.sum()) == len(client.data.y) and labels.tolist() == sorted(labels.tolist())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 0.0}, "alpha is 0.0, it must be above 0 and at most 1"),
        ({"tau": 0.0}, "tau is 0.0, it must be at least 1e-06"),
        ({"lam": -1.0}, "lam is -1.0, it must be at least 0"),
        ({"negative": "abs"}, "negative is 'abs', it must be one of clamp, signed"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
