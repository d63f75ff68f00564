"""Tests of FedGA against a plain loop and values computed by hand."""

import copy
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.lab.contract.halves import bytes_by_kind
from protofleet.methods import fedavg, fedga
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.plain import DATA, LOCAL, WITHOUT_2, fit, network, order_of
from tests.methods.plain import halves as plain_halves
from tests.methods.test_oracles import CASES
from tests.methods.tiny import Shard, answer, play, same, shard
from tests.support.small_federation import plan, simulation
from tests.support.small_federation import shard as whole_shard

HYPER = fedga.Hyper(**LOCAL, step=0.5)
ROUNDS = 4
ALL_DEVICES = (tuple(DATA),) * ROUNDS
# Two neighbouring rounds have two devices in common that can measure. device-2 cannot measure; device-3 comes late.
SOME = (
    ("device-0", "device-1", "device-2"),
    ("device-0", "device-1"),
    ("device-0", "device-1", "device-3"),
    ("device-0", "device-3"),
)


def validation(name):
    """Return validation samples, which differ from the training samples; device-2 has none."""
    i = int(name[-1])
    part = shard(10 + i, (0, 1, 2) * (0 if i == 2 else 7))
    x = part.x.double()
    x[:, 3] -= 10
    return Shard(x + 1.5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(i)), part.y)


def halves(hyper=HYPER, data=DATA):
    server, clients = plain_halves(fedga, hyper, data)
    server.rounds = ROUNDS
    for name, client in clients.items():
        client.validation = validation(name)
    return server, clients


def played(hyper, data=DATA, rounds=SOME):
    server, clients = halves(hyper, data)
    for number, present in enumerate(rounds, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


def quality(model, name, hyper):
    part = validation(name)
    if not len(part.y):
        return None
    with torch.no_grad():
        scores = model.eval()(part.x)
    if hyper.gap == "loss":
        return float(F.cross_entropy(scores, part.y))
    return sum(int(row.argmax()) == label for row, label in zip(scores, part.y.tolist(), strict=True)) / len(
        part.y
    )


def step_along(a, gaps, hyper, number):
    """Change the weights by device, `a`, in place by the formula."""
    if not gaps or not max(abs(gap) for gap in gaps.values()):
        return
    step = hyper.step * (1 - (number - 1) / ROUNDS)
    largest, whole = max(abs(gap) for gap in gaps.values()), sum(a[name] for name in gaps)
    for name, gap in gaps.items():
        change = gap / largest * step / len(gaps)
        a[name] = min(max(a[name] - change if hyper.gap == "accuracy" else a[name] + change, 0), 1)
    total = sum(a[name] for name in gaps)
    for name in gaps:
        a[name] *= whole / total


def plain(hyper, data, rounds):
    world, a, before, last = network(), {}, {}, ()
    for number, present in enumerate(rounds, 1):
        if hyper.when == "next":
            both = [n for n in present if n in last and quality(world, n, hyper) is not None]
            gaps = {name: quality(world, name, hyper) - before[name] for name in both}
        new = [name for name in present if name not in a]
        devices = len(a) + len(new)
        a = {name: share * len(a) / devices for name, share in a.items()} | dict.fromkeys(new, 1 / devices)
        models = {}
        for name in present:
            model = models[name] = copy.deepcopy(world)

            def loss(x, y, model=model):
                return F.cross_entropy(model(x), y)

            order = order_of(name, number)
            fit(model, list(model.parameters()), data[name], hyper.epochs, hyper, order, loss)
            before[name] = quality(model, name, hyper)
        if hyper.when == "next":
            step_along(a, gaps, hyper, number - 1)
        total, state = sum(a[name] for name in present), {}
        for key, value in models[present[0]].state_dict().items():
            parts = [a[name] / total * models[name].state_dict()[key] for name in present]
            state[key] = sum(parts) if value.is_floating_point() else value
        world.load_state_dict(state)
        if hyper.when == "phase":
            measured = [name for name in present if before[name] is not None]
            gaps = {name: quality(world, name, hyper) - before[name] for name in measured}
            step_along(a, gaps, hyper, number)
        last = present
    return world, a


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("when", ["next", "phase"])
@pytest.mark.parametrize("gap", ["accuracy", "loss"])
def test_four_rounds_equal_those_of_a_plain_loop(gap, when, data):
    hyper = replace(HYPER, gap=gap, when=when)
    server, _ = played(hyper, data)
    world, a = plain(hyper, data, SOME)
    for key, value in world.state_dict().items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    assert server.shares.keys() == a.keys()
    for name, share in a.items():
        assert server.shares[name] == pytest.approx(share, rel=1e-8)
    assert max(a.values()) - min(a.values()) > 0.01, "the weights must have changed"


@pytest.mark.parametrize("gap", ["accuracy", "loss"])
def test_both_settings_of_when_give_the_same_models_if_all_devices_are_present(gap):
    servers = [played(replace(HYPER, gap=gap, when=when), DATA, ALL_DEVICES)[0] for when in ("next", "phase")]
    assert same(*(server.payload() for server in servers))
    other, clients = plain_halves(fedavg, fedavg.Hyper(**LOCAL))
    for number in range(1, ROUNDS + 1):
        play(other, clients, number)
    assert not same(other.payload(), servers[0].payload())


@pytest.mark.parametrize("gap", ["accuracy", "loss"])
def test_the_weights_of_the_devices_equal_the_oracle(gap):
    given, expected = CASES["fedga.weights"]["inputs"], CASES["fedga.weights"]["expected"]
    short = gap[:3] if gap == "accuracy" else gap
    server = fedga.Server(network(), replace(HYPER, gap=gap, step=given["step_size"]), 7)
    server.shares = dict(zip("abc", given["weights"], strict=True))
    pairs = zip("abc", given[f"{short}_before"], given[f"{short}_after"], strict=True)
    server.move(
        [Reply(name, 1, {"validation": torch.tensor(pair, dtype=torch.float64)}) for name, *pair in pairs], 1
    )
    assert [*server.shares.values()] == pytest.approx(expected[f"by_{gap}"], abs=1e-8)


def test_the_device_that_averaging_harms_most_gains_weight():
    shares = {"a": 0.25, "b": 0.25, "c": 0.5}
    for gap, harmed in (("accuracy", -0.2), ("loss", 0.2)):
        found = fedga.moved(shares, {"a": harmed, "b": -harmed}, fedga.SIGN[gap] * 0.2)
        assert found["a"] > 0.25 > found["b"] and found["c"] == 0.5
        assert found["a"] + found["b"] == pytest.approx(0.5)


def test_zero_gaps_change_no_weight_and_no_weight_falls_below_0():
    shares = {"a": 0.05, "b": 0.05, "c": 0.9}
    assert fedga.moved(shares, {}, 0.2) == fedga.moved(shares, {"a": 0.0, "b": 0.0}, 0.2) == shares
    assert fedga.moved(shares, {"a": -1.0, "b": -1.0}, 0.5) == shares, "weights that are all 0 have no sum"
    found = fedga.moved(shares, {"a": -1.0, "b": 0.5}, 1.0)
    assert found == {"a": 0.0, "b": pytest.approx(0.1), "c": 0.9}


def test_a_weight_is_limited_to_1_before_the_weights_are_normalised():
    found = fedga.moved({"a": 0.95, "b": 0.05}, {"a": 1.0, "b": -0.2}, 0.4)
    assert found == {"a": pytest.approx(1 / 1.01), "b": pytest.approx(0.01 / 1.01)}


def test_the_step_falls_from_the_first_round_to_the_last_round():
    server = fedga.Server(network(), replace(HYPER, step=0.2), 7)
    server.rounds, found = 5, []
    for number in range(1, 6):
        server.shares = {"a": 0.5, "b": 0.5}
        pairs = {"a": (1.0, 0.0), "b": (0.5, 0.5)}
        server.move(
            [Reply(name, 1, {"validation": torch.tensor(pair)}) for name, pair in pairs.items()], number
        )
        a = server.shares["a"]
        found.append((0.5 / (1 - a) - 1) * 2)  # 0.5 / (1 - a) is the sum of the shares before it is made 1.
    assert found == pytest.approx([0.2, 0.16, 0.12, 0.08, 0.04])
    assert Plan("fedga", 3, 12, network=Network("mlp")).server_half().rounds == 12


def test_a_device_that_missed_a_round_or_has_no_validation_samples_keeps_its_weight():
    server, clients = halves()
    some = {name: clients[name] for name in ("device-0", "device-1")}
    play(server, some, 1)
    (up,) = play(server, {**some, "device-2": clients["device-2"], "device-3": clients["device-3"]}, 2)
    assert {name for name, sent in up.items() if "validation" in sent} == {"device-0", "device-1"}
    assert server.shares["device-2"] == server.shares["device-3"] == 0.25
    (up,) = play(server, {name: clients[name] for name in ("device-0", "device-2")}, 3)
    assert "validation" in up["device-0"] and "validation" not in up["device-2"]
    (up,) = play(server, {name: clients[name] for name in ("device-0", "device-1")}, 4)
    assert "validation" not in up["device-1"]


def test_the_gap_of_a_device_whose_answer_was_not_used_changes_no_weight():
    """The device trained, but its answer came too late."""
    server, clients = halves()
    server.begin(1, [Member("device-0", 24), Member("device-1", 18)])
    ask = next(story := server.round())
    sent = {name: answer(clients[name], ask, 1) for name in ("device-0", "device-1")}
    with pytest.raises(StopIteration):
        story.send([Reply("device-0", 24, sent["device-0"])])
    (up,) = play(server, {name: clients[name] for name in sent}, 2)
    assert "validation" in up["device-1"]
    assert server.shares == {"device-0": 0.5, "device-1": 0.5}, "the weight of a single device cannot change"


def test_a_device_that_measured_but_whose_model_did_not_arrive_is_not_counted():
    server, clients = halves(replace(HYPER, when="phase"))
    both = {name: clients[name] for name in ("device-0", "device-1")}
    play(server, both, 1)
    before = dict(server.shares)
    assert before.keys() == both.keys()
    server.begin(2, [Member(name, len(c.data.y)) for name, c in both.items()])
    story = server.round()
    ask = next(story)
    trained = {name: answer(client, ask, 2) for name, client in both.items()}
    ask = story.send([Reply("device-0", 24, trained["device-0"])])
    measured = [Reply(name, len(c.data.y), answer(c, ask, 2)) for name, c in both.items()]
    gaps = {reply.device: float(reply.payload["validation"].diff()) for reply in measured}
    assert fedga.moved(before, gaps, -0.1) != pytest.approx(before), (
        "the weights would change if both devices counted"
    )
    with pytest.raises(StopIteration):
        story.send(measured)
    assert server.shares == pytest.approx(before), "the weight of a single device cannot change"


def test_a_device_gives_the_same_answer_when_a_round_is_repeated():
    server, clients = halves()
    play(server, clients, 1)
    server.begin(2, [Member(name, 9) for name in clients])
    ask = next(server.round())
    first = answer(clients["device-0"], ask, 2)
    again = halves()[1]["device-0"]
    again.restore(snapshot(clients["device-0"].state()))
    assert same(answer(clients["device-0"], ask, 2), first) and same(answer(again, ask, 2), first)


def test_the_order_of_answers_changes_no_bit():
    found = []
    for seed in (0, 1, 2):
        server, clients = halves()
        for number in (1, 2):
            server.begin(number, [Member(name, len(c.data.y)) for name, c in clients.items()])
            ask = next(story := server.round())
            replies = [Reply(name, len(c.data.y), answer(c, ask, number)) for name, c in clients.items()]
            random.Random(seed).shuffle(replies)
            with pytest.raises(StopIteration):
                story.send(replies)
        found.append(server)
    assert same(found[0].state(), found[1].state()) and same(found[0].state(), found[2].state())


@pytest.mark.parametrize("when", ["next", "phase"])
def test_restored_halves_continue_with_the_same_bits(when):
    hyper = replace(HYPER, when=when)
    server, clients = played(hyper)
    other, others = halves(hyper)
    for half, old in ((other, server), *((others[name], clients[name]) for name in DATA)):
        half.restore(snapshot(old.state()))
    play(server, clients, 5)
    play(other, others, 5)
    assert same(other.state(), server.state())
    assert all(same(others[name].state(), clients[name].state()) for name in DATA)


@pytest.mark.parametrize(
    ("gap", "pair", "words"),
    [
        ("accuracy", (0.5, 1.1), "validation has 1.1, above 1"),
        ("accuracy", (-0.1, 1.0), "validation has -0.1, below 0"),
        ("loss", (0.5, 1.1e6), "validation has 1.1e+06, above 1e+06"),
        ("loss", (0.5, float("nan")), "validation is not finite"),
        ("loss", (0.5,), "validation is (1,), not (2,)"),
    ],
)
def test_an_impossible_accuracy_or_loss_is_refused(gap, pair, words):
    server, _ = halves(replace(HYPER, gap=gap))
    server.begin(1, [Member("a", 4)])
    ask = next(server.round())
    sent = snapshot(weights_of(server.model))
    assert ask.problem_with(sent) is None
    assert words in ask.problem_with({**sent, "validation": torch.tensor(pair).double()}).message


def test_a_device_whose_loss_exceeds_the_limit_reports_the_limit():
    client = halves(replace(HYPER, gap="loss"))[1]["device-0"]
    with torch.no_grad():
        client.model.head.weight.mul_(1e9)
    assert client.measured() == 1e6


def test_measuring_does_not_change_the_model():
    client = halves()[1]["device-0"]
    client.model.train()
    before = snapshot(weights_of(client.model))
    client.measured()
    assert client.model.training and same(weights_of(client.model), before)


def test_a_phase_that_measures_sends_the_model_a_second_time():
    hyper = {"when": "phase", "epochs": 1, "batch": 8}
    made = Plan("fedga", 3, 3, 7, 8, Network("mlp"), hyper)
    data = whole_shard(0)
    client, server = made.client_half(data.train, "a", validation=data.validation), made.server_half()
    server.begin(1, [Member("a", len(data.train.y))])
    story, up, down = server.round(), {}, {}
    ask = next(story)
    phases = []
    while ask:
        phases.append(ask.phase)
        sent = answer(client, ask, 1)
        for total, payload in ((up, sent), (down, ask.payload)):
            for kind, size in bytes_by_kind(payload).items():
                total[kind] = total.get(kind, 0) + size
        try:
            ask = story.send([Reply("a", len(data.train.y), sent)])
        except StopIteration:
            ask = None
    weights = 4 * sum(w.numel() for w in client.model.parameters())
    assert phases == ["train", "measure"]
    assert (up, down) == ({"weights": weights, "validation": 8}, {"weights": 2 * weights})


def test_devices_of_a_run_have_validation_samples(tmp_path):
    run = simulation(tmp_path, "fedga").run()
    server = run.service.run.server_runner.server
    assert server.shares.keys() == run.agents.keys()
    halves = [agent.run.job.half for agent in run.agents.values()]
    assert all(len(half.validation.y) == 9 and len(half.before) == 2 for half in halves)
    assert plan("fedga").client_half(whole_shard(0).train, "a").validation is None


def test_a_device_without_validation_samples_sends_the_same_arrays_as_in_fedavg():
    client = plain_halves(fedga, HYPER)[1]["device-0"]
    client.begin(1)
    assert client.run(Ask("train")).keys() == weights_of(network()).keys()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 1.5}, "step is 1.5, it must be at least 0 and at most 1"),
        ({"gap": "f1"}, "gap is 'f1', it must be one of accuracy, loss"),
        ({"when": "never"}, "when is 'never', it must be one of next, phase"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(change, words):
    with pytest.raises(ValueError, match=words):
        replace(HYPER, **change)
