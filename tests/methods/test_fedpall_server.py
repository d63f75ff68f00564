"""Tests of FedPall's server: prototypes, C_g and A, and answers that no device should send."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedpall
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.maths.adversary import kl_with_uniform
from protofleet.methods.nets.mlp import amplifier, fedpall_classifier
from protofleet.methods.parts.prototypes import LARGEST_NUMBER
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.arrays import Body
from tests.methods.fedpall_halves import (
    HYPER,
    WIDTH,
    C,
    D,
    client_of,
    halves,
    only,
    rows,
    uploads,
)
from tests.methods.fedpall_halves import narrow as narrow
from tests.methods.tiny import play, same, server_of, tiny

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
    server.merge([prototypes_from("b", b, [2], [1])])  # No device sends classes 0 and 1.
    assert_close(server.prototypes, torch.stack([(30 * a[0] + 10 * b[0]) / 40, a[1], b[0]]))
    assert server.known.all()


def test_several_rows_of_one_class_from_one_device_are_pooled():
    server, a = server_of(fedpall.METHOD, HYPER), rows()
    server.merge([prototypes_from("a", a, [1, 1, 0], [1, 3, 5])])
    assert_close(server.prototypes[1], (a[0] + 3 * a[1]) / 4)


# The server: C_g and A


def fitted(server, replies, number=1):
    server.begin(number, [Member(r.device, r.examples) for r in replies])
    server.models.add_devices(r.device for r in replies)
    server.figures = server.models.fit(replies, server.hyper.server, server.generator("fit"))
    return server


def test_the_server_trains_each_network_as_if_it_were_alone():
    replies = uploads([13, 0, 8, 4])  # 25 samples: the last batch has one sample.
    server = server_of(fedpall.METHOD, replace(HYPER, server_epochs=2))
    server.models.add_devices(r.device for r in replies)
    start = snapshot(server.models.weights())
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
        torch.randint(1 << 62, (), generator=orders)  # Draws the seed of random layers.
        for _ in range(2):
            for batch in torch.split(torch.randperm(25, generator=orders), 8):
                alone.train(len(batch) > 1)
                optimizer.zero_grad()
                F.cross_entropy(alone(x[batch]), targets[batch]).backward()
                optimizer.step()
        for key, value in weights_of(alone, name).items():
            assert_close(server.models.weights()[key], value, msg=lambda m, key=key: f"{key}: {m}")


def test_the_amplifier_learns_the_device_and_the_classifier_learns_the_class():
    server = server_of(fedpall.METHOD, replace(HYPER, server_epochs=30))
    replies = uploads([24, 24, 24])
    fitted(server, replies)
    C_g, A = server.models.C_g.eval(), server.models.A.eval()
    for i, reply in enumerate(replies):
        assert (A(reply.payload["features"]).argmax(1) == i).float().mean() > 0.9
        assert (C_g(reply.payload["features"]).argmax(1) == reply.payload["labels"]).float().mean() > 0.9
    assert server.monitor()["loss.amplifier"] < 0.3 and server.monitor()["loss.classifier"] < 0.3


def test_the_monitor_reports_the_mean_losses_of_the_last_epoch():
    server = server_of(fedpall.METHOD, replace(HYPER, server_lr=1e-30, server_epochs=3))
    assert server.monitor() == {}
    replies = uploads([8, 8])
    server.models.add_devices(r.device for r in replies)
    x, y = (torch.cat([r.payload[n] for r in replies]) for n in ("features", "labels"))
    fitted(server, replies)
    order = server.generator("fit")
    torch.randint(1 << 62, (), generator=order)
    for _ in range(3):
        batches = torch.split(torch.randperm(16, generator=order), 8)
    C_g = server.models.C_g.train()
    expected = sum(float(F.cross_entropy(C_g(x[b]), y[b]).detach()) for b in batches) / 2
    assert server.monitor()["loss.classifier"] == pytest.approx(expected, rel=1e-5)
    assert server.monitor()["features"] == 16.0
    assert sorted(server.monitor()) == ["features", "loss.amplifier", "loss.classifier"]


def test_the_monitor_reports_only_the_current_round():
    server, clients = halves()
    play(server, clients, 1)
    assert server.monitor()["features"] == 24 + 18 + 7
    server.begin(2, [])
    next(server.round())
    assert server.monitor() == {}


@pytest.mark.parametrize("lengths", [[1], [9], [0, 0], [0, 1, 0]])
def test_the_server_can_train_on_few_or_no_features(lengths):
    server = server_of(fedpall.METHOD, HYPER)
    before = snapshot(server.models.weights())
    fitted(server, uploads(lengths))
    state = server.state()
    assert all(v.isfinite().all() for v in state.values())
    moved = not torch.equal(before["classifier.0.weight"], state["classifier.0.weight"])
    assert moved == (sum(lengths) > 0)
    seen = -(-sum(lengths) // 8) - (sum(lengths) % 8 == 1)  # A batch of one does not change the statistics.
    assert int(state["classifier.1.num_batches_tracked"]) == seen


def test_the_server_reads_features_from_the_disk_row_by_row(tmp_path):
    replies, read = uploads([13, 0, 12]), []
    store = ObjectStore(tmp_path, durable=False)

    def lazy(reply):
        name = store.put(to_numpy(reply.payload)).object
        body = Body(lambda *span: read.append(span[1] - span[0]) or store.read(name, *span), store.size(name))
        read.clear()  # Forget the reads of its table.
        return Reply(reply.device, reply.examples, LazyPayload(body))

    one, other = (server_of(fedpall.METHOD, HYPER) for _ in range(2))
    fitted(one, replies)
    fitted(other, [lazy(reply) for reply in replies])
    assert same(one.state(), other.state())
    # The labels are read once, and the features row by row.
    assert sorted(read) == sorted([13 * 8, 0, 12 * 8, *[D * 4] * 25])


def test_the_momentum_of_the_server_continues_from_the_previous_round():
    def after(hyper, calls):
        server = server_of(fedpall.METHOD, hyper)
        for number in range(1, calls + 1):
            fitted(server, uploads([8, 8]), number)
        return server

    rolling = after(HYPER, 2)
    still = after(HYPER, 1)
    still.models.momenta = {}
    fitted(still, uploads([8, 8]), 2)
    assert not same(rolling.state(), still.state())
    fresh = after(replace(HYPER, server_momentum=0.0), 2)
    assert not any(v.any() for v in fresh.models.momenta.values())


def test_a_new_device_gets_another_output_and_the_others_keep_theirs():
    server = server_of(fedpall.METHOD, HYPER)
    b, c = (replace(r, device=name) for r, name in zip(uploads([8, 8]), "bc", strict=True))
    fitted(server, [b, c])
    old, momentum = server.models.A, server.models.momenta["amplifier.6.weight"].clone()
    server.begin(2, [Member("a", 3), Member("c", 8)])
    story = server.round()
    next(story)
    grown = server.models.A
    assert server.models.devices == ["b", "c", "a"]
    assert torch.equal(grown[6].weight[:2], old[6].weight) and grown[6].weight.shape == (3, WIDTH)
    assert grown[6].weight[2].abs().max() > 0
    assert same(*({k: v for k, v in weights_of(A).items() if "6." not in k} for A in (old, grown)))
    optimizer = server.models.optimizer(nn.ModuleDict({"amplifier": grown}), HYPER.server)
    number = next(i for i, w in enumerate(optimizer.parameters) if w is grown[6].weight)
    buffer = optimizer.buffers[number]["momentum_buffer"]
    assert torch.equal(buffer[:2], momentum) and not buffer[2].any()
    server.hyper = replace(HYPER, server_epochs=40)
    fitted(server, [replace(b, device="a"), c], 3)
    assert (grown.eval()(b.payload["features"]).argmax(1) == 2).float().mean() > 0.8
    assert (grown(c.payload["features"]).argmax(1) == 1).float().mean() > 0.8


def test_the_weights_of_new_outputs_depend_only_on_the_seed():
    def grown(seed):
        server = fedpall.Server(tiny(), HYPER, seed)
        server.models.add_devices("ba")
        torch.manual_seed(0)
        server.models.add_devices("acb")
        assert server.models.devices == ["a", "b", "c"]
        return server.models.A

    assert same(weights_of(grown(1)), weights_of(grown(1)))
    assert not torch.equal(grown(1)[6].weight[2], grown(2)[6].weight[2])


def test_the_setting_clients_reserves_outputs_for_later_devices():
    server, clients = halves(replace(HYPER, clients=5))
    play(server, only(clients, 0), 1)
    assert server.models.A[6].weight.shape == (5, WIDTH)
    fitted(server, uploads([2] * 7), 2)  # More devices than that are no error.
    assert server.models.A[6].weight.shape == (7, WIDTH)


# Hostile answers


def hostile(server, number, features, labels, prototypes=None):
    """Play a round in which one device sends these values in a well-formed answer."""
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
        lambda z: torch.full_like(z, LARGEST_NUMBER),
        lambda z: torch.full_like(z, -LARGEST_NUMBER),
        lambda z: z.sign() * LARGEST_NUMBER,
        torch.zeros_like,
    ],
)
def test_the_state_is_finite_for_all_accepted_answers(spoil, classifier):
    server = server_of(fedpall.METHOD, replace(HYPER, classifier=classifier, server_epochs=4))
    for number in (1, 2, 3):
        labels = (torch.arange(40) * number) % C
        hostile(server, number, spoil(rows(number, 40)), labels, spoil(rows(number)))
    assert all(v.isfinite().all() for v in server.state().values())
    client = client_of(classifier=classifier)
    client.receive(snapshot(server.payload_for_cohort() | dict(server.payload())))
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
    assert wants("mix").problem_with(sent).message == problem


def test_impossible_prototypes_are_refused():
    far = prototypes_from("a", torch.full((1, D), -2e6), [0], [1]).payload
    assert wants("train").problem_with(far).message == "prototypes has -2e+06, below -1e+06"
    many = prototypes_from("a", rows(0, 4), [0, 1, 2, 2], [1] * 4).payload
    assert wants("train").problem_with(many).message == "prototypes is (4, 6), over the limit of 3 for held"


def test_features_for_more_samples_than_the_device_has_are_refused():
    sent = {"features": torch.zeros(3, D), "labels": torch.zeros(3, dtype=torch.int64)}
    assert wants("mix").problem_with(sent, 3) is None
    assert wants("mix").problem_with(sent, 2).message == "features has 3 rows, of a device with 2 examples"
