"""Tests of FedNH against a plain loop, values computed by hand, and vectors computed in NumPy."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fednh
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.maths.means import class_means, merge_class_means
from protofleet.methods.parts.averaging import plain_mean
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, halves, network, order_of, played
from tests.methods.test_oracles import case, check
from tests.methods.tiny import CLASSES, SHARDS, Shard, floats, play, same, tiny

HYPER = fednh.Hyper(**LOCAL, rho=0.7, scale=3.0, lr_decay=0.8, clip=None)
FREE = fednh.Hyper(**LOCAL, clip=0.5)
TWO_CLASSES = {name: Shard(part.x, part.y.clamp(max=1)) for name, part in DATA.items()}
D = network().embedding_size


def first_prototypes():
    """Return the prototypes with which a server of seed 7 begins; another test checks their values."""
    return fednh.METHOD.Server(network(), HYPER, 7).payload()["prototypes"].clone()


def plain(hyper, data):
    shared = {key: value for key, value in network().state_dict().items() if not key.startswith("head.")}
    W, scale = first_prototypes(), torch.tensor(hyper.scale).double()
    for number, present in enumerate(PRESENT, 1):
        bases, scales, sums, counts = [], [], torch.zeros(CLASSES, D).double(), [0] * CLASSES
        for name in present:
            model, s = network(), scale.clone().requires_grad_(not hyper.fixed_scale)
            model.load_state_dict({**model.state_dict(), **copy.deepcopy(shared)})

            def loss(x, y, model=model, s=s, W=W):
                z = model.embed(x)
                return F.cross_entropy(s * (z / z.norm(dim=1, keepdim=True)) @ W.T, y)

            part = [p for key, p in model.named_parameters() if not key.startswith("head.")]
            part += [] if hyper.fixed_scale else [s]
            slower = replace(hyper, lr=hyper.lr * hyper.lr_decay ** (number - 1))
            fit(model, part, data[name], hyper.epochs, slower, order_of(name, number), loss)
            with torch.no_grad():
                z = F.normalize(model.eval().embed(data[name].x), dim=1)
            for label in set(data[name].y.tolist()):
                own = z[data[name].y == label]
                sums[label] += len(own) * F.normalize(own.mean(0), dim=0)
                counts[label] += len(own)
            bases.append(model.state_dict())
            scales.append(s.detach())
        for key, value in shared.items():
            mean = sum(base[key] for base in bases) / len(bases)
            shared[key] = mean if value.is_floating_point() else bases[0][key]
        scale = sum(scales) / len(scales)
        for label in range(CLASSES):
            if counts[label]:
                toward = F.normalize(sums[label] / counts[label], dim=0)
                W[label] = F.normalize(hyper.rho * W[label] + (1 - hyper.rho) * toward, dim=0)
    return shared, scale, W


@pytest.mark.parametrize("data", [DATA, TWO_CLASSES], ids=["three classes", "a class that no device holds"])
@pytest.mark.parametrize("changes", [{}, {"fixed_scale": True}, {"rho": 0.0}], ids=str)
def test_four_rounds_equal_those_of_a_plain_loop(changes, data):
    hyper = replace(HYPER, **changes)
    server, clients = played(fednh, hyper, data)
    shared, scale, W = plain(hyper, data)
    payload = dict(server.payload())
    assert_close(payload.pop("prototypes"), W, rtol=1e-8, atol=1e-10)
    if not hyper.fixed_scale:
        assert_close(payload.pop("weights.head.scale"), scale, rtol=1e-8, atol=1e-10)
    assert {key.removeprefix("weights.") for key in payload} == shared.keys()
    for key, value in shared.items():
        assert_close(payload[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)


def test_the_last_fit_is_one_more_local_training_from_the_last_broadcast():
    hyper, number = replace(HYPER, final_fit=True), len(PRESENT) + 1
    server, clients = played(fednh, hyper)
    client, payload = clients["device-1"], snapshot(server.payload())
    client.begin(number)
    client.receive(payload)
    client.after_last_round()
    model, W = network(), payload["prototypes"]
    weights = {
        key.removeprefix("weights."): value
        for key, value in payload.items()
        if key.startswith(("weights.features.", "weights.projector."))
    }
    model.load_state_dict({**model.state_dict(), **weights})
    scale = payload["weights.head.scale"].clone().requires_grad_()

    def loss(x, y):
        z = model.embed(x)
        return F.cross_entropy(scale * (z / z.norm(dim=1, keepdim=True)) @ W.T, y)

    part = [p for key, p in model.named_parameters() if not key.startswith("head.")]
    slower = replace(hyper, lr=hyper.lr * hyper.lr_decay ** len(PRESENT))
    order = order_of("device-1", number, "settle")
    fit(model, [*part, scale], DATA["device-1"], hyper.epochs, slower, order, loss)
    found = dict(client.model.state_dict())
    assert torch.equal(found.pop("head.prototypes"), W)
    assert_close(found.pop("head.scale"), scale.detach(), rtol=1e-10, atol=1e-12)
    for key, value in found.items():
        assert_close(value, model.state_dict()[key], rtol=1e-10, atol=1e-12)


def test_the_personal_model_is_reported_only_if_final_fit_is_on():
    assert fednh.METHOD.under(HYPER).reports == "global"
    assert fednh.METHOD.under(replace(HYPER, final_fit=True)).reports == "personal"
    both = fednh.METHOD.under(replace(HYPER, final_fit=True, fixed_scale=True))
    assert both.reports == "personal", "for any other settings"
    server, clients = halves(fednh, HYPER)
    client = clients["device-0"]
    client.begin(1)
    client.receive(snapshot(server.payload()))
    before = snapshot(client.model.state_dict())
    client.after_last_round()
    assert same(client.model.state_dict(), before)


def test_a_device_without_anything_to_train_sends_its_prototypes():
    hyper = replace(HYPER, fixed_scale=True, final_fit=True)
    model = tiny(projector=False, norm=True, frozen=True)
    client = fednh.METHOD.Client(model, SHARDS["device-1"], hyper, 7, "device-1")
    before = snapshot(client.model.state_dict())
    client.begin(1)
    sent = client.run(Ask("train"))
    client.after_last_round()
    assert same(client.model.state_dict(), before)
    z = F.normalize(model.eval().embed(SHARDS["device-1"].x), dim=1)
    means = torch.stack([z[SHARDS["device-1"].y == label].mean(0) for label in (0, 1)])
    assert sent.keys() == {"prototypes", "labels", "counts"}
    assert_close(sent["prototypes"], F.normalize(means, dim=1).detach())


def test_the_new_prototypes_of_the_server_equal_the_oracle():
    given, expected = case("fednh.prototypes")
    pieces = []
    for scaled, counts in zip(given["client_class_means_unit_scaled"], given["counts"], strict=True):
        held = counts >= 1
        rows, whole = scaled[held] / counts[held].unsqueeze(1), counts[held].long()
        pieces.append(class_means(rows, held.nonzero().squeeze(1), len(held), whole))
    merged = merge_class_means(pieces)
    W_new = fednh.moved(given["W"], merged, given["rho"])
    check(expected, average=F.normalize(merged[0], dim=1), W_new=W_new)
    assert torch.equal(W_new[2], given["W"][2])


def test_the_first_prototypes_are_unit_rows_and_orthogonal_if_possible():
    W = first_prototypes()
    assert_close(W @ W.T, torch.eye(CLASSES).double(), rtol=0, atol=1e-6)
    assert_close(W.norm(dim=1), torch.ones(CLASSES).double(), rtol=1e-12, atol=0)
    narrow = tiny()
    narrow.project(2)
    W = fednh.METHOD.Server(narrow, HYPER, 7).payload()["prototypes"]
    assert W.shape == (3, 2)
    assert_close(W.norm(dim=1), torch.ones(3))


def test_scores_are_scaled_cosines():
    server, clients = halves(fednh, HYPER)
    client, x = clients["device-0"], DATA["device-0"].x
    client.receive(snapshot(server.payload()))
    z, W = client.model.eval().embed(x), first_prototypes()
    cosines = F.cosine_similarity(z.unsqueeze(1), W.unsqueeze(0), dim=2)
    assert_close(client.predict(x), 3.0 * cosines)


def test_a_device_trains_the_scale_but_not_the_prototypes():
    for fixed in (False, True):
        server, clients = halves(fednh, replace(HYPER, fixed_scale=fixed))
        client, W = clients["device-0"], first_prototypes()
        play(server, {"device-0": client}, 1)
        assert torch.equal(client.head.prototypes, W) and not torch.equal(server.head.prototypes, W)
        assert (float(client.head.scale.detach()) == 3.0) == fixed
        assert ("weights.head.scale" in server.payload()) != fixed


def test_a_device_sends_unit_means_of_unit_features_and_longer_rows_are_refused():
    server, clients = halves(fednh, HYPER)
    up = play(server, clients, 1)[0]
    for name, payload in up.items():
        assert payload["labels"].tolist() == sorted(set(DATA[name].y.tolist()))
        assert_close(payload["prototypes"].norm(dim=1), torch.ones(len(payload["labels"])).double())
    model = clients["device-1"].model.eval()
    z = F.normalize(model.embed(DATA["device-1"].x), dim=1)
    means = torch.stack([z[DATA["device-1"].y == label].mean(0) for label in (0, 1)])
    assert_close(up["device-1"]["prototypes"], F.normalize(means, dim=1).detach())
    ask = next(server.round())
    longer = {**up["device-1"], "prototypes": up["device-1"]["prototypes"] * 10}
    assert ask.problem_with(up["device-1"]) is None
    assert "prototypes has" in ask.problem_with(longer).message


def test_the_learning_rate_falls_with_the_number_of_the_round():
    client = halves(fednh, HYPER)[1]["device-0"]
    start = snapshot(client.model.state_dict())

    def step(number, **changes):
        client.hyper = replace(HYPER, epochs=1, batch=100, momentum=0.0, weight_decay=0.0, **changes)
        client.model.load_state_dict(start)
        client.begin(number)
        client.run(Ask("train"))
        return client.model.projector.bias.detach() - start["projector.bias"]

    assert_close(step(4), 0.8**3 * step(1))
    assert_close(step(2, lr_decay=1.0), step(1))
    assert not step(1_000_000).any()  # 0.8^999999 is 0, and no error


def test_gradients_are_clipped_to_10_by_default():
    assert fednh.Hyper().clip == 10.0 and fednh.Hyper(clip=None).clip is None
    server, clients = halves(fednh, FREE)
    one, other = clients["device-0"], halves(fednh, replace(FREE, clip=None))[1]["device-0"]
    for client in (one, other):
        client.receive(snapshot(server.payload()))
        client.begin(1)
        client.run(Ask("train"))
    assert not same(one.model.state_dict(), other.model.state_dict())


def test_each_device_counts_once_in_the_mean_of_models():
    replies = [Reply("b", 100, {"w": torch.tensor([4.0])}), Reply("a", 0, {"w": torch.tensor([2.0])})]
    assert plain_mean(replies, ["w"])["w"].item() == 3.0


def test_the_order_of_answers_changes_no_bit():
    up = play(*halves(fednh, HYPER), 1)[0]
    replies = [Reply(name, len(DATA[name].y), payload) for name, payload in up.items()]
    states = []
    for order in itertools.permutations(replies):
        server, _ = halves(fednh, HYPER)
        server.begin(1, [])
        story = server.round()
        next(story)
        with pytest.raises(StopIteration):
            story.send(order)
        states.append(server.state())
    assert all(same(states[0], other) for other in states)


def test_a_restored_server_has_the_same_prototypes():
    server, _ = played(fednh, HYPER)
    again = fednh.METHOD.Server(network(), HYPER, 7)
    again.restore(snapshot(server.state()))
    assert same(again.payload(), server.payload()) and same(again.state(), server.state())


def test_devices_and_server_send_all_weights_but_those_of_the_head():
    server, clients = halves(fednh, HYPER)
    base = sum(
        v.numel() for part in (network().features, network().projector) for v in part.state_dict().values()
    )
    up = play(server, clients, 1)[0]["device-1"]
    assert floats(up) == {"weights": base + 1, "prototypes": 2 * D, "labels": 2, "counts": 2}
    assert floats(server.payload()) == {"weights": base + 1, "prototypes": 3 * D}
    assert not isinstance(clients["device-1"].model.head, nn.Linear)


@pytest.mark.parametrize(
    "setting, value, problem",
    [
        ("rho", 1.1, "rho is 1.1, it must be at least 0 and at most 1"),
        ("scale", -1.0, "scale is -1.0, it must be at least 0"),
        ("lr_decay", 0.0, "lr_decay is 0.0, it must be above 0 and at most 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, value, problem):
    with pytest.raises(ValueError) as error:
        fednh.Hyper(**{setting: value})
    assert str(error.value).startswith(problem)
