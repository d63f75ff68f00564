"""Tests of RUCR against a plain loop, values computed by hand, and vectors computed in NumPy."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import rucr
from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.flat import flat_weights
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, batches, fit, halves, network, order_of
from tests.methods.test_oracles import case, check
from tests.methods.tiny import CLASSES, Shard, answer, member, play, same

HYPER = rucr.Hyper(
    **LOCAL, mu=2.0, tau=0.5, rectify_rounds=2, virtual=20, head_epochs=3, head_batch=16, head_lr=0.1
)  # device-0 has more samples than `virtual`; the others have fewer.
TWO_CLASSES = {name: Shard(part.x, part.y.clamp(max=1)) for name, part in DATA.items()}
ROUNDS = len(PRESENT)


def played(hyper, data=DATA):
    server, clients = halves(rucr, hyper, data)
    server.rounds = ROUNDS
    for number, present in enumerate(PRESENT, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


def class_rows(model, part):
    with torch.no_grad():
        z = model.eval().embed(part.x)
    return {label: z[part.y == label] for label in sorted(set(part.y.tolist()))}, z


def virtual(known, z, hyper, order):
    made, labels = [], []
    for label, mean in sorted(known.items()):
        if len(z) >= hyper.virtual:
            rows = torch.randperm(len(z), generator=order)[: hyper.virtual]
        else:
            rows = torch.randint(len(z), (hyper.virtual,), generator=order)
        draws = torch.rand(hyper.virtual, 1, generator=order, dtype=torch.float64).flatten().tolist()
        for row, u in zip(rows.tolist(), draws, strict=True):
            lam = round(hyper.lam_low + (hyper.lam_high - hyper.lam_low) * u, 2)
            made.append(lam * mean + (1 - lam) * z[row] / z[row].norm())
            labels.append(label)
    return Shard(torch.stack(made), torch.tensor(labels))


def plain(hyper, data):
    world, rectified, last = network(), None, {}
    for number, present in enumerate(PRESENT, 1):
        total, came, heads = sum(len(data[name].y) for name in present), [], []
        sums, counts = torch.zeros(CLASSES, 6).double(), [0] * CLASSES
        for name in present:
            last[name] = {}
            for label, rows in class_rows(world, data[name])[0].items():
                sums[label] += rows.sum(0)
                counts[label] += len(rows)
                last[name][label] = len(rows), rows.mean(0) / rows.mean(0).norm()
        P = {label: sums[label] / counts[label] for label in range(CLASSES) if counts[label]}
        directions = {}
        for label in range(CLASSES):
            held = [means[label] for means in last.values() if label in means]
            if held:
                directions[label] = sum(n * mean for n, mean in held) / sum(n for n, _ in held)
        for name in present:
            model, own = copy.deepcopy(world), set(data[name].y.tolist())
            z = class_rows(world, data[name])[1]

            def loss(x, y, model=model, own=own, P=P, counts=counts):
                z, terms = model.embed(x), []
                for one, label in zip(z, y.tolist(), strict=True):
                    scores = [
                        F.cosine_similarity(one, P[c], dim=0) / hyper.tau if c in own else one.sum() * 0
                        for c in range(CLASSES)
                    ]
                    scores[label] = scores[label] + math.log(counts[label] / sum(counts))
                    terms.append(torch.logsumexp(torch.stack(scores), 0) - scores[label])
                return F.cross_entropy(model.head(z), y) + hyper.mu * torch.stack(terms).mean()

            part = list(model.parameters())
            fit(model, part, data[name], hyper.epochs, hyper, order_of(name, number), loss)
            share = len(data[name].y) / total
            came.append((share, copy.deepcopy(model.state_dict())))
            if number > ROUNDS - hyper.rectify_rounds:
                head = copy.deepcopy(model.head)
                found = virtual(directions, z, hyper, order_of(name, number, "mix"))
                sgd = torch.optim.SGD(head.parameters(), lr=hyper.head_lr)
                order = order_of(name, number, "head")
                for v, c in batches(head, found, hyper.head_batch, hyper.head_epochs, order):
                    sgd.zero_grad()
                    F.cross_entropy(head(v), c).backward()
                    sgd.step()
                heads.append((share, head.state_dict()))
        world.load_state_dict(mean_of(came))
        if heads:
            rectified = mean_of(heads)
            if hyper.write_head:
                world.head.load_state_dict(rectified)
    return world.state_dict(), rectified


def mean_of(found):
    first = found[0][1]
    return {
        key: sum(share * came[key] for share, came in found) if value.is_floating_point() else value
        for key, value in first.items()
    }


@pytest.mark.parametrize("data", [DATA, TWO_CLASSES], ids=["three classes", "a class that no device holds"])
@pytest.mark.parametrize("changes", [{}, {"write_head": True}, {"rectify_rounds": 0}], ids=str)
def test_four_rounds_equal_those_of_a_plain_loop(changes, data):
    hyper = replace(HYPER, **changes)
    server, _ = played(hyper, data)
    world, rectified = plain(hyper, data)
    wanted = {f"weights.{key}": value for key, value in world.items()}
    if rectified and not hyper.write_head:
        wanted |= {f"rectified.{key}": value for key, value in rectified.items()}
    payload = server.payload()
    assert payload.keys() == wanted.keys()
    for key, value in wanted.items():
        assert_close(payload[key], value, rtol=1e-8, atol=1e-10)


def test_the_contrast_equals_the_oracle():
    given, expected = case("rucr.feature_loss")
    y, every = given["labels"], torch.ones(3, dtype=torch.bool)
    one_by_one = [
        rucr.balanced_contrast(
            given["features"][i : i + 1], y[i : i + 1], given["unified_prototypes"], every,
            given["class_ratio"], every, given["t"],
        )
        for i in range(2)
    ]  # fmt: skip
    loss = rucr.balanced_contrast(
        given["features"], y, given["unified_prototypes"], every, given["class_ratio"], every, given["t"]
    )
    check(expected, per_sample=torch.stack(one_by_one), loss=loss)


def test_a_virtual_feature_equals_the_oracle():
    given, expected = case("rucr.mix")
    check(expected, mixed=rucr.mixed(given["lam"], given["mean_c"], given["feature"]))


def test_a_class_that_the_device_lacks_counts_in_the_sum_with_the_score_0():
    z, P = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double()
    y, shares = torch.tensor([0]), torch.tensor([0.5, 0.5, 0.0]).double()
    known = torch.tensor([True, True, False])
    expected = math.log(math.exp(2 + math.log(0.5)) + 1 + 1) - (2 + math.log(0.5))
    for local in ([True, False, False], [True, False, True]):
        found = rucr.balanced_contrast(z, y, P, known, shares, torch.tensor(local), 0.5)
        assert float(found) == pytest.approx(expected)


def test_samples_of_a_class_without_a_prototype_are_not_part_of_the_mean():
    z, P = torch.randn(4, 6).double().requires_grad_(), torch.randn(3, 6).double()
    y, every = torch.tensor([0, 2, 0, 2]), torch.ones(3, dtype=torch.bool)
    known, shares = torch.tensor([True, True, False]), torch.tensor([0.4, 0.6, 0.0]).double()
    some = rucr.balanced_contrast(z, y, P, known, shares, every, 0.9)
    assert_close(some, rucr.balanced_contrast(z[[0, 2]], y[[0, 2]], P, known, shares, every, 0.9))
    none = rucr.balanced_contrast(z, y, P, torch.zeros_like(known), shares, every, 0.9)
    assert none.item() == 0 and not torch.autograd.grad(none, z)[0].any()


def test_the_row_of_a_class_without_a_prototype_is_never_read():
    z, P = torch.randn(4, 6).double(), torch.randn(3, 6).double()
    y, every = torch.tensor([0, 2, 0, 2]), torch.ones(3, dtype=torch.bool)
    known, shares = torch.tensor([True, True, False]), torch.tensor([0.4, 0.6, 0.0]).double()
    wanted = rucr.balanced_contrast(z, y, P, known, shares, every, 0.9)
    P[2], shares[2] = 1e3, 0.7
    assert torch.equal(rucr.balanced_contrast(z, y, P, known, shares, every, 0.9), wanted)


def test_heads_are_retrained_only_in_the_last_rounds_of_the_run():
    assert Plan("rucr", 3, 5).server_half().rounds == 5
    server, clients = halves(rucr, HYPER)
    server.rounds = 5
    came = {number: play(server, clients, number)[1]["device-0"] for number in range(1, 6)}
    with_head = [number for number, up in came.items() if "head.parameters" in up]
    assert with_head == [4, 5]
    kept = flat_weights(clients["device-0"].model)["weights.parameters"]
    assert torch.equal(kept, came[5]["weights.parameters"]), (
        "the device's model keeps the head that it trained"
    )


def test_the_retrained_head_is_used_to_predict_and_not_to_train():
    server, clients = played(HYPER)
    server.begin(5, [member(name, client) for name, client in clients.items()])
    assert not any(name.startswith("rectified") for name in next(server.round()).payload)
    client, x = clients["device-0"], DATA["device-0"].x
    assert client.other_rules() == {}
    payload = snapshot(server.payload())
    client.receive(payload)
    z = client.model.eval().embed(x)
    assert_close(client.predict(x), z @ payload["rectified.weight"].T + payload["rectified.bias"])
    other = client.other_rules()["unrectified"]
    assert_close(client.scores(x, other), client.model(x))
    assert not torch.equal(client.predict(x), client.model(x))
    client.receive({name: value for name, value in payload.items() if name.startswith("weights.")})
    assert torch.equal(client.predict(x), client.model(x))


def test_virtual_features_are_made_for_each_known_class():
    z = torch.arange(12.0).reshape(4, 3)
    hyper = replace(HYPER, virtual=3, lam_low=0.4, lam_high=0.4)
    directions, classes = torch.eye(3)[:2], torch.tensor([0, 2])
    found = rucr.VirtualFeatures(z, directions, classes, hyper, torch.Generator())
    assert found.y.tolist() == [0, 0, 0, 2, 2, 2] and found.x.shape == (6, 3)
    unmixed = (found.x - 0.4 * directions.repeat_interleave(3, 0)) / 0.6
    own = {tuple(row) for row in F.normalize(z, dim=1).round(decimals=4).tolist()}
    for start in (0, 3):
        drawn = {tuple(row) for row in unmixed[start : start + 3].round(decimals=4).tolist()}
        assert drawn <= own and len(drawn) == 3, "each feature is drawn once, because there are enough"
    nobody = rucr.VirtualFeatures(z[:0], directions, classes, hyper, torch.Generator())
    assert len(nobody.y) == len(nobody.x) == 0


def test_mixing_shares_have_two_decimals_and_are_between_the_bounds():
    z = torch.ones(2, 1).double()
    found = rucr.VirtualFeatures(
        z, torch.zeros(1, 1).double(), torch.tensor([0]), replace(HYPER, virtual=500), torch.Generator()
    )
    lam = 1 - found.x.flatten()
    assert_close(lam, lam.round(decimals=2), rtol=0, atol=1e-12)
    assert 0.35 - 1e-9 <= lam.min() < 0.37 and 0.93 < lam.max() <= 0.95 + 1e-9


def test_a_device_that_reboots_between_the_phases_sends_the_same_answer():
    server, clients = halves(rucr, HYPER)
    server.rounds = 1
    server.begin(1, [member(name, client) for name, client in clients.items()])
    story = server.round()
    first = next(story)
    up = {name: answer(client, first, 1) for name, client in clients.items()}
    second = story.send([Reply(name, len(DATA[name].y), payload) for name, payload in up.items()])
    again = rucr.METHOD.Client(network(), DATA["device-1"], HYPER, 7, "device-1")
    with torch.no_grad():
        for parameter in again.model.parameters():
            parameter.add_(1.0)
    again.restore(snapshot(clients["device-1"].state()))
    assert same(answer(again, second, 1), answer(clients["device-1"], second, 1))


def test_a_restored_server_continues_with_the_same_bits():
    server, clients = halves(rucr, HYPER)
    server.rounds = ROUNDS
    for number, present in enumerate((("device-2", "device-3"), ("device-1",), ("device-0",)), 1):
        play(server, {name: clients[name] for name in present}, number)
    again = rucr.METHOD.Server(network(), HYPER, 7)
    again.rounds = ROUNDS
    again.restore(snapshot(server.state()))
    assert same(again.payload(), server.payload()) and same(again.state(), server.state())
    others = {"device-0": rucr.METHOD.Client(network(), DATA["device-0"], HYPER, 7, "device-0")}
    play(again, others, 4)
    play(server, {"device-0": clients["device-0"]}, 4)
    assert same(again.state(), server.state())
    early = halves(rucr, HYPER)[0]
    again.restore(snapshot(early.state()))
    assert same(again.state(), early.state())


def test_the_order_of_answers_changes_no_bit():
    states = []
    first, second = play(*halves(rucr, HYPER), 1)
    for order in itertools.permutations(DATA):
        server, _ = halves(rucr, HYPER)
        server.begin(1, [])
        story = server.round()
        next(story)
        asked = story.send([Reply(name, len(DATA[name].y), first[name]) for name in order])
        with pytest.raises(StopIteration):
            story.send([Reply(name, len(DATA[name].y), second[name]) for name in order])
        states.append({**snapshot(asked.payload), **server.state()})
    assert all(same(states[0], other) for other in states)


def test_a_far_too_large_prototype_is_refused():
    server, clients = halves(rucr, HYPER)
    server.begin(1, [])
    ask = next(server.round())
    sent = answer(clients["device-0"], ask, 1)
    assert ask.problem_with(sent) is None
    wild = {**sent, "prototypes": sent["prototypes"] * 1e9}
    assert "prototypes has" in ask.problem_with(wild).message


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"tau": 0.0}, "tau is 0.0, it must be at least 1e-06"),
        ({"virtual": 0}, "virtual is 0, it must be at least 1"),
        ({"lam_high": 0.2}, "lam_high is 0.2, it must be between lam_low = 0.35 and 1"),
        ({"rectify_rounds": -1}, "rectify_rounds is -1, it must be at least 0"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(settings, problem):
    with pytest.raises(ValueError) as error:
        rucr.Hyper(**settings)
    assert str(error.value).startswith(problem)
