"""Tests of FedGen against a plain loop and values computed by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedgen
from protofleet.methods.contract.base import Member, Reply, seeded
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.nets.mlp import fedpall_classifier
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from protofleet.protocol.settings.reader import SettingsError
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, halves, network, order_of
from tests.methods.tiny import CLASSES, play, same

HYPER = fedgen.Hyper(**LOCAL, noise=5, hidden=16, server_steps=12, server_batch=7, server_lr=0.1)
D = network().embedding_size
# The devices of each round; none of them holds class 2.
WITHOUT_A_CLASS = (("device-1",), ("device-1", "device-3"), ("device-3",), ("device-1",))
FLAGS = ("trained", "untrained")
heads = pytest.mark.parametrize("deep", [False, True])


def net(deep):
    """Return a network; with a deeper head, weighted scores differ from the scores of the mean head."""
    model = network()
    if deep:
        model.head = fedpall_classifier(D, CLASSES, seed=3).double()
    return model


def first_generator():
    with initialised_from(seeded(7, "generator").initial_seed()):
        layers = [nn.Linear(5 + CLASSES, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, D)]
        return nn.Sequential(*layers).double()


def draw(generator, counts, size, order):
    y = torch.multinomial(torch.tensor(counts, dtype=torch.float64), size, True, generator=order)
    eps = torch.rand(size, 5, generator=order, dtype=torch.float64)
    return generator(torch.cat([eps, torch.eye(CLASSES).double()[y]], 1)), y


def plain(rounds, hyper, deep):
    models, generator, counts = {name: net(deep) for name in DATA}, first_generator(), {}
    head, untrained = net(deep).head, hyper.generator == "untrained"
    for number, present in enumerate(rounds, 1):
        for name in present:
            counts[name] = [int((DATA[name].y == c).sum()) for c in range(CLASSES)]
        total = [sum(column) for column in zip(*counts.values(), strict=True)]
        for name in present:
            model = models[name]
            model.head.load_state_dict(head.state_dict())
            order = order_of(name, number, "train-generated")

            def loss(x, y, model=model, order=order, total=total, number=number):
                own = F.cross_entropy(model(x), y)
                if number == 1 and not untrained:
                    return own
                with torch.no_grad():
                    generator.train(untrained)
                    z, other = draw(generator, total, len(y), order)
                return own + F.cross_entropy(model.head(z), other)

            data = DATA[name]
            fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(name, number), loss)
        shares = {name: len(DATA[name].y) / sum(len(DATA[n].y) for n in present) for name in present}
        merged = {}
        for key, value in head.state_dict().items():
            sent = {name: models[name].head.state_dict()[key] for name in present}
            mean = sum(shares[name] * sent[name] for name in sorted(present))
            merged[key] = mean if value.is_floating_point() else sent[sorted(present)[0]]
        head.load_state_dict(merged)
        if not untrained:
            teach(generator, [(shares[n], models[n].head) for n in sorted(present)], total, number, hyper)
    return head, generator, models


def teach(generator, heads, total, number, hyper):
    order, adam = (
        seeded(7, number, "server", "teach"),
        torch.optim.Adam(generator.parameters(), hyper.server_lr),
    )
    generator.train()
    for _, head in heads:
        head.eval()
    for _ in range(hyper.server_steps):
        z, y = draw(generator, total, hyper.server_batch, order)
        loss = F.cross_entropy(sum(share * head(z) for share, head in heads), y)
        gradients = torch.autograd.grad(loss, list(generator.parameters()))
        for parameter, gradient in zip(generator.parameters(), gradients, strict=True):
            parameter.grad = gradient
        adam.step()


def fleet(hyper, deep=False):
    clients = {name: fedgen.METHOD.Client(net(deep), part, hyper, 7, name) for name, part in DATA.items()}
    return fedgen.METHOD.Server(net(deep), hyper, 7), clients


def played(rounds, hyper, deep=False):
    server, clients = fleet(hyper, deep)
    for number, present in enumerate(rounds, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


@heads
@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("rounds", [PRESENT, WITHOUT_A_CLASS])
def test_four_rounds_equal_those_of_a_plain_loop(rounds, flag, deep):
    hyper = replace(HYPER, generator=flag, server_steps=3 if deep else 12)
    server, clients = played(rounds, hyper, deep)
    head, generator, models = plain(rounds, hyper, deep)
    close = {"rtol": 1e-8, "atol": 1e-10}
    for key, value in head.state_dict().items():
        assert_close(server.payload()[f"weights.head.{key}"], value, **close)
    if flag == "trained":
        found = list(weights_of(server.G).values())
        for value, other in zip(found, generator.state_dict().values(), strict=True):
            assert_close(value, other, **close)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, **close)


def asked(server, names, number=1):
    server.begin(
        number, [Member(n, len(DATA[n].y), tuple(DATA[n].y.bincount(minlength=3).tolist())) for n in names]
    )
    return next(server.round())


def test_a_trained_generator_is_sent_from_round_2_on():
    server, clients = fleet(HYPER)
    first = weights_of(fleet(HYPER)[0].G)
    assert {name.partition(".")[0] for name in asked(server, ["device-0"]).payload} == {"weights"}
    play(server, clients, 1)
    sent = asked(server, ["device-0"], 2).payload
    assert {name.partition(".")[0] for name in sent} == {"weights", "generator", "counts"}
    assert not same({k.replace("weights", "generator"): v for k, v in first.items()}, generator_in(sent))
    assert {name.partition(".")[0] for name in server.payload()} == {"weights"}, (
        "to predict, the head is enough"
    )


def generator_in(payload):
    return {name: value for name, value in payload.items() if name.startswith("generator.")}


def test_an_untrained_generator_is_sent_from_round_1_on_and_never_changes():
    hyper = replace(HYPER, generator="untrained")
    server, _ = fleet(hyper)
    first = snapshot(generator_in(asked(server, ["device-0"]).payload))
    assert first
    server, _ = played(PRESENT, hyper)
    assert same(generator_in(asked(server, ["device-0"], 5).payload), first)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_device_does_not_change_the_received_generator(flag):
    hyper = replace(HYPER, generator=flag)
    server, clients = played(PRESENT, hyper)
    ask, client = asked(server, ["device-0"], 5), clients["device-0"]
    client.begin(5)
    client.receive({k: v.clone().requires_grad_(v.is_floating_point()) for k, v in ask.payload.items()})
    sent, modes = generator_in(ask.payload), []
    client.G.register_forward_hook(lambda *_: modes.append(client.G.layers[1].training))
    client.run(ask)
    assert set(modes) == {flag == "untrained"}
    assert all(p.grad is None for p in client.G.parameters())
    found = {
        k: v for k, v in weights_of(client.G, "generator").items() if "running" not in k and "num_" not in k
    }
    assert all(torch.equal(value, sent[key]) for key, value in found.items())


def test_a_generated_batch_has_the_size_of_the_own_batch_and_only_known_classes():
    server, clients = played(WITHOUT_A_CLASS, HYPER)
    client, ask, seen = clients["device-1"], asked(server, ["device-1"], 5), []
    assert ask.payload["counts"].tolist() == [9, 15, 0]
    client.receive(snapshot(ask.payload))
    client.G.register_forward_hook(lambda _, given, __: seen.append(given[1]))
    client.run(ask)
    assert [len(y) for y in seen] == [8, 8, 2] * 2
    assert set(torch.cat(seen).tolist()) == {0, 1}


def test_labels_are_drawn_in_proportion_to_the_counts():
    G = fleet(HYPER)[0].G
    _, y = fedgen.generated(G, torch.tensor([1, 0, 3]), 4000, torch.Generator().manual_seed(1))
    assert (y.bincount(minlength=3) / 4000).tolist() == pytest.approx([0.25, 0.0, 0.75], abs=0.03)


def test_the_counts_are_the_last_stated_counts_of_all_devices_of_any_cohort():
    server, _ = played(PRESENT, HYPER)
    total = sum(part.y.bincount(minlength=3) for part in DATA.values())
    assert torch.equal(asked(server, ["device-3"], 5).payload["counts"], total)
    server.begin(6, [Member("device-3", 2, (0, 0, 2))])
    assert next(server.round()).payload["counts"].tolist() == (total + torch.tensor([0, -6, 2])).tolist()


def test_a_round_without_any_sample_does_not_change_the_generator():
    server, clients = fleet(HYPER)
    before = snapshot(weights_of(server.G))
    server.begin(1, [Member("a", 0, (0, 0, 0))])
    story = server.round()
    next(story)
    with pytest.raises(StopIteration):
        story.send([Reply("a", 0, clients["device-0"].shared())])
    assert same(weights_of(server.G), before) and "counts" not in asked(server, [], 2).payload


def test_the_order_of_answers_changes_no_bit():
    ends = []
    for order in (1, -1):
        server, clients = fleet(HYPER, deep=True)
        server.begin(1, [Member("a", 9, (9, 0, 0)), Member("b", 9, (0, 9, 0))])
        story = server.round()
        next(story)
        replies = [
            Reply(n, 9, {**c.shared(), **spread(c)}) for n, c in zip("ab", clients.values(), strict=False)
        ]
        with pytest.raises(StopIteration):
            story.send(replies[::order])
        ends.append(server.state())
    assert same(*ends)


def spread(client):
    """Return the shared values of a device plus random numbers that differ for each device."""
    g = torch.Generator().manual_seed(int(client.device[-1]))
    return {
        k: v + torch.rand(v.shape, generator=g) for k, v in client.shared().items() if v.is_floating_point()
    }


@heads
def test_the_largest_allowed_heads_leave_a_finite_state_and_larger_heads_are_refused(deep):
    server = fedgen.METHOD.Server(net(deep).float(), HYPER, 7)
    client = fedgen.METHOD.Client(net(deep).float(), DATA["device-0"], HYPER, 7, "a")
    server.begin(1, [Member("a", 9, (3, 3, 3))])
    story = server.round()
    ask = next(story)
    huge = {k: torch.full_like(v, 1e6) if v.is_floating_point() else v for k, v in client.shared().items()}
    for key, value in huge.items():
        value.view(-1)[::2] *= -1 if "running_var" not in key and value.is_floating_point() else 1
    assert ask.problem_with(huge) is None
    worse = {k: v * 1.5 if v.is_floating_point() else v for k, v in huge.items()}
    assert (
        "above 1e+06" in ask.problem_with(worse).message or "below -1e+06" in ask.problem_with(worse).message
    )
    with pytest.raises(StopIteration):
        story.send([Reply("a", 9, huge)])
    assert all(value.isfinite().all() for value in server.state().values())


def test_a_generator_that_became_not_finite_is_dropped():
    """The heads are within their bounds, but the square of a gradient is not."""
    server = fedgen.METHOD.Server(net(deep=True).float(), HYPER, 7)
    before = snapshot(weights_of(server.G))
    server.begin(1, [Member("a", 9, (3, 3, 3))])
    story = server.round()
    ask = next(story)
    sent = {key: torch.full_like(ask.payload[key], 1e6) for key in ask.wants}
    sent |= {key: torch.zeros_like(value) for key, value in sent.items() if "running_var" in key}
    assert ask.problem_with(sent) is None
    with pytest.raises(StopIteration):
        story.send([Reply("a", 9, sent)])
    assert same(weights_of(server.G), before) and not server.lesson()


def test_a_restored_server_continues_with_the_same_bits():
    server, clients = played(PRESENT, HYPER)
    other, _ = fleet(HYPER)
    other.restore(snapshot(server.state()))
    again = {name: fedgen.METHOD.Client(network(), DATA[name], HYPER, 7, name) for name in DATA}
    for name, client in again.items():
        client.restore(snapshot(clients[name].state()))
    up, expected = play(other, again, 5)[0], play(server, clients, 5)[0]
    assert all(same(up[name], expected[name]) for name in up)
    assert same(other.state(), server.state())


def test_a_restored_server_knows_the_counts_of_absent_devices():
    server, _ = played(PRESENT, HYPER)
    other, _ = fleet(HYPER)
    other.restore(snapshot(server.state()))
    counts = asked(other, ["device-3"], 5).payload["counts"]
    assert torch.equal(counts, sum(part.y.bincount(minlength=3) for part in DATA.values()))


def test_generated_embeddings_are_much_too_long_with_the_learning_rate_of_htfllib():
    """Far longer embeddings make the heads not finite, in some runs after some rounds."""
    lengths = {}
    for rate in (fedgen.Hyper().server_lr, 0.1):
        server, clients = played(PRESENT, fedgen.Hyper(**LOCAL, server_lr=rate))
        z, _ = fedgen.generated(server.G, server.labels(), 500, torch.Generator().manual_seed(1))
        own = torch.cat([client.model.eval().embed(client.data.x) for client in clients.values()])
        lengths[rate] = (z.norm(dim=1).mean() / own.norm(dim=1).mean()).item()
    usual, high = lengths.values()
    assert usual < 10 < 50 < high, lengths


def test_the_generator_for_100_classes_has_331_264_parameters():
    model = Plan("fedgen", 100, 1, network=Network("cnn4")).model()
    cost = fedgen.cost(Sizes(model, held=10))
    assert cost.down["generator"] == 331_264 == 331_776 - 512
    assert cost.up == {"weights": 512 * 100 + 100}


@pytest.mark.parametrize(
    "setting, problem",
    [
        ({"generator": "none"}, "generator is 'none', it must be one of trained, untrained"),
        ({"server_batch": 1}, "server_batch is 1, it must be at least 2 and at most 65_536"),
        ({"noise": 0}, "noise is 0, it must be at least 1"),
        ({"server_lr": 0.0}, "server_lr is 0.0, it must be above 0"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, problem):
    with pytest.raises((ValueError, SettingsError)) as error:
        fedgen.Hyper(**setting)
    assert str(error.value).startswith(problem)


def test_devices_share_only_the_head_and_state_their_counts():
    assert fedgen.METHOD.needs_counts and fedgen.METHOD.alike == "head"
    server, clients = halves(fedgen, HYPER)
    assert {name.split(".")[1] for name in clients["device-0"].shared()} == {"head"}
    assert {name.split(".")[1] for name in server.payload()} == {"head"}
