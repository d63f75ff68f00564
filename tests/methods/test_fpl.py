"""Tests of FPL against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedavg, fpl
from protofleet.methods.contract.base import Member, Reply
from protofleet.methods.parts.clusters import clusters_in
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.plain import LOCAL, averaged, fit, halves, order_of, played
from tests.methods.plain_finch import MANY, ROUNDS, WITHOUT_2, global_prototypes
from tests.methods.test_oracles import CASES
from tests.methods.tiny import answer, normal, play, same

HYPER = fpl.Hyper(**LOCAL, tau=0.3)


def extra(z, y, table, hyper):
    """Return the extra loss of FPL, computed sample by sample."""
    terms = []
    for row, label in zip(z, y.tolist(), strict=True):
        if label in table:
            e = {
                c: (F.cosine_similarity(row.unsqueeze(0), g) / hyper.tau).exp().sum()
                for c, g in table.items()
            }
            terms.append(
                -torch.log(e[label] / sum(e.values())) + (row - table[label].mean(0)).square().mean()
            )
    return torch.stack(terms).mean() if terms else 0.0


def plain(hyper, devices):
    table, sent, last, most = {}, [], [0], []

    def train(model, device, number):
        nonlocal table
        if number > last[0]:  # At the first device of a round, the table of the round before has arrived.
            table = global_prototypes(sent, table)
            sent.clear()
            last[0] = number
            most.extend(map(len, table.values()))
        data, seen = devices[device], []
        rows = {c: torch.stack(found) for c, found in table.items()}

        def loss(x, y):
            z = model.embed(x)
            seen.extend(zip(z.detach(), y.tolist(), strict=True))
            return F.cross_entropy(model.head(z), y) + extra(z, y, rows, hyper)

        fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(device, number), loss)
        last_epoch = seen[-len(data.y) :]
        if hyper.proto_source == "eval":
            with torch.no_grad():
                last_epoch = list(zip(model.eval().embed(data.x), data.y.tolist(), strict=True))
        held = sorted({label for _, label in last_epoch})
        sent.append({c: [torch.stack([z for z, label in last_epoch if label == c]).mean(0)] for c in held})

    shared, _ = averaged(ROUNDS, train, data=devices)
    return shared, global_prototypes(sent, table), max(most)


@pytest.mark.parametrize("devices", [MANY, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("source", ["training", "eval"])
def test_four_rounds_equal_those_of_a_plain_loop(devices, source):
    hyper = replace(HYPER, proto_source=source)
    server, _ = played(fpl, hyper, devices, ROUNDS)
    shared, table, most = plain(hyper, devices)
    payload = server.payload()
    for key, value in shared.items():
        assert_close(payload[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    assert table.keys() == ({0, 1, 2} if devices is MANY else {0, 1})
    labels = [c for c in sorted(table) for _ in table[c]]
    assert payload["labels"].tolist() == labels
    assert most > 1, "with one row for each class, the test does not use FINCH"
    rows = torch.stack([row for c in sorted(table) for row in table[c]])
    assert_close(payload["prototypes"], rows, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["fpl.hier.T0.02", "fpl.hier.T0.2"])
def test_the_loss_equals_the_oracle(name):
    given, expected = CASES[name]["inputs"], CASES[name]["expected"]
    rows, labels = zip(
        *((g, int(c)) for c, table in given["cluster_prototypes"].items() for g in table), strict=True
    )
    client = halves(fpl, replace(HYPER, tau=given["T"]))[1]["device-0"]
    known = {"prototypes": torch.tensor(rows).double(), "labels": torch.tensor(labels)}
    z, y = torch.tensor([given["feature"]]).double(), torch.tensor([given["label"]])
    client.model.embedding_size = z.shape[1]
    loss = client.towards(clusters_in(known, client.model), z, y)
    assert_close(float(loss), expected["loss"], rtol=1e-8, atol=1e-8)


def test_only_the_first_round_equals_fedavg():
    (server, clients), (other, others) = halves(fpl, HYPER), halves(fedavg, HYPER)
    for number, alike in ((1, True), (2, False)):
        play(server, clients, number)
        play(other, others, number)
        assert same(weights_of(server.model), weights_of(other.model)) == alike


def test_a_class_with_rows_of_up_to_three_devices_has_their_mean_as_prototype():
    server, clients = halves(fpl, HYPER)
    (up,) = play(server, {name: clients[name] for name in ("device-0", "device-1", "device-2")}, 1)
    payload = server.payload()
    assert payload["labels"].tolist() == [0, 1, 2]
    for label in range(3):
        sent = [p["prototypes"][p["labels"] == label] for p in up.values()]
        assert_close(payload["prototypes"][label], torch.cat(sent).mean(0))


def test_samples_of_a_class_without_prototypes_are_not_part_of_the_mean():
    client = halves(fpl, HYPER)[1]["device-0"]
    G = clusters_in({"prototypes": normal(2, 6), "labels": torch.tensor([0, 0])}, client.model)
    z, y = normal(4, 6, seed=1), torch.tensor([0, 2, 2, 0])
    assert_close(client.towards(G, z, y), client.towards(G, z[[0, 3]], y[[0, 3]]))
    assert client.towards(G, z, torch.full((4,), 2)) == 0


def test_a_small_temperature_gives_finite_losses_and_gradients():
    client = halves(fpl, replace(HYPER, tau=1e-6))[1]["device-0"]
    G = clusters_in({"prototypes": normal(3, 6), "labels": torch.arange(3)}, client.model)
    z = torch.cat([-G.rows, G.rows, torch.zeros(1, 6)]).requires_grad_()
    loss = client.towards(G, z, torch.arange(7) % 3)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.isfinite() and gradient.isfinite().all()


def test_a_class_that_no_device_of_a_round_holds_keeps_its_rows():
    server, clients = halves(fpl, HYPER, MANY)
    play(server, {name: clients[name] for name in ROUNDS[0]}, 1)
    before = server.payload()
    play(server, {"device-3": clients["device-3"]}, 2)  # device-3 holds only class 1.
    after = server.payload()
    for label in (0, 2):
        rows = [p["prototypes"][p["labels"] == label] for p in (before, after)]
        assert torch.equal(*rows)
    assert int((after["labels"] == 1).sum()) == 1


def replies_of(server, clients, change=lambda sent: sent):
    server.begin(1, [Member(name, len(c.data.y)) for name, c in clients.items()])
    story = server.round()
    ask = next(story)
    return story, [
        Reply(name, len(c.data.y), change(answer(c, ask, 1))) for name, c in sorted(clients.items())
    ]


def after(story, server, replies):
    with pytest.raises(StopIteration):
        story.send(replies)
    return server.payload()


def test_the_order_of_answers_changes_no_bit():
    tables = []
    for turn in (1, -1):
        server, clients = halves(fpl, HYPER, MANY)
        story, replies = replies_of(server, clients)
        tables.append(after(story, server, replies[::turn]))
    assert same(*tables)


def test_several_rows_of_one_class_from_one_device_count_once():
    def doubled(sent):
        apart = torch.cat([sent["prototypes"] + 0.5, sent["prototypes"] - 0.5])
        return {**sent, "prototypes": apart, "labels": sent["labels"].repeat(2)}

    tables = []
    for change in (lambda sent: sent, doubled):
        server, clients = halves(fpl, HYPER, MANY)
        story, replies = replies_of(server, clients, change)
        tables.append(after(story, server, replies))
    assert_close(tables[0]["prototypes"], tables[1]["prototypes"])


@pytest.mark.parametrize("value", [1.1e6, -1.1e6])
def test_far_too_large_rows_and_more_rows_than_samples_are_refused(value):
    server, _ = halves(fpl, HYPER)
    server.begin(1, [Member("a", 2)])
    ask = next(server.round())

    def problem(rows, value):
        table = {"prototypes": torch.full((rows, 6), value).double(), "labels": torch.zeros(rows).long()}
        found = ask.problem_with({**snapshot(weights_of(server.model)), **table}, 2)
        return found and found.message

    assert problem(2, 1.0) is None
    assert "prototypes has" in problem(1, value)
    assert problem(3, 1.0) == "prototypes has 3 rows, of a device with 2 examples"
    assert "over the limit of 3" in problem(4, 1.0)


def test_received_arrays_get_no_gradient():
    server, clients = halves(fpl, HYPER)
    play(server, clients, 1)
    payload = snapshot(server.payload())
    floats = [v.requires_grad_() for v in payload.values() if v.is_floating_point()]
    client = clients["device-0"]
    client.receive(payload)
    client.objective(client.data.x, client.data.y).backward()
    assert all(v.grad is None for v in floats)


def test_restored_halves_continue_with_the_same_bits():
    server, clients = played(fpl, HYPER, MANY, ROUNDS)
    again, others = halves(fpl, HYPER, MANY)
    for half, old in ((again, server), *((others[name], clients[name]) for name in MANY)):
        half.restore(snapshot(old.state()))
    play(server, clients, 5)
    play(again, others, 5)
    assert same(again.payload(), server.payload()) and same(again.state(), server.state())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tau": 0.0}, "tau is 0.0, it must be at least 1e-06"),
        ({"proto_source": "last"}, "proto_source is 'last', it must be one of training, eval"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
