"""Tests of FML against a plain loop and values computed by hand, and of the reports on the shared network."""

import copy
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.lab.local.experiment import Experiment
from protofleet.methods import fml
from protofleet.methods.contract.base import Reply
from protofleet.methods.contract.cost import Sizes, parameters
from protofleet.methods.contract.plan import Network, Plan, read_plan
from protofleet.methods.maths.distillation import divergence
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.plain import DATA, LOCAL, PRESENT, batches, network, order_of
from tests.methods.test_oracles import case, check
from tests.methods.tiny import play, same, tiny

HYPER = fml.Hyper(**LOCAL, alpha=0.3, beta=0.6)
# The devices of each round; none of them holds class 2.
WITHOUT_A_CLASS = (("device-1",), ("device-1", "device-3"), ("device-3",), ("device-1",))
VARIANTS = ({}, {"targets": "moving"}, {"kl": "elements"}, {"clip": 0.5})


def shared_network():
    return tiny(5, projector=False, norm=True).double()


def kl(p, q, elements):
    """Return KL(p || q) of scores, as a mean over rows or over all elements."""
    a, b = p.exp() / p.exp().sum(1, keepdim=True), q.exp() / q.exp().sum(1, keepdim=True)
    terms = a * (a.log() - b.log())
    return terms.mean() if elements else terms.sum(1).mean()


def plain(rounds, hyper):
    models, world = {name: network() for name in DATA}, shared_network()
    for number, present in enumerate(rounds, 1):
        sent = {}
        for name in present:
            g = copy.deepcopy(world)
            together(models[name], g, DATA[name], hyper, order_of(name, number))
            sent[name] = g.state_dict()
        for key, value in world.state_dict().items():
            came = [sent[name][key] for name in sorted(present)]
            value.copy_(sum(came) / len(came) if value.is_floating_point() else came[0])
    return world, models


def together(f, g, data, hyper, order):
    nets = [f, g]
    steps = [
        torch.optim.SGD(n.parameters(), hyper.lr, hyper.momentum, weight_decay=hyper.weight_decay)
        for n in nets
    ]
    for x, y in batches(nn.ModuleList(nets), data, hyper.batch, hyper.epochs, order):
        own, shared, elements = f(x), g(x), hyper.kl == "elements"
        losses = [
            hyper.alpha * F.cross_entropy(own, y) + (1 - hyper.alpha) * kl(shared, own, elements),
            hyper.beta * F.cross_entropy(shared, y) + (1 - hyper.beta) * kl(own, shared, elements),
        ]
        found = []
        for net, loss in zip(nets, losses, strict=True):
            moved = sum(losses) if hyper.targets == "moving" else loss
            found.append(torch.autograd.grad(moved, list(net.parameters()), retain_graph=True))
        for net, gradients, sgd in zip(nets, found, steps, strict=True):
            norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
            shrink = 1.0 if hyper.clip is None else min(1.0, hyper.clip / (float(norm) + 1e-6))
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = shrink * gradient
            sgd.step()


def fleet(hyper):
    clients = {
        name: fml.METHOD.Client(network(), part, hyper, 7, name, shared_network())
        for name, part in DATA.items()
    }
    return fml.METHOD.Server(shared_network(), hyper, 7), clients


def played(rounds, hyper):
    server, clients = fleet(hyper)
    for number, present in enumerate(rounds, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("rounds", [PRESENT, WITHOUT_A_CLASS])
def test_four_rounds_equal_those_of_a_plain_loop(rounds, variant):
    hyper = replace(HYPER, **variant)
    server, clients = played(rounds, hyper)
    world, models = plain(rounds, hyper)
    for key, value in world.state_dict().items():
        assert_close(server.shared()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-8, atol=1e-10)


def test_both_reductions_of_the_divergence_equal_the_oracle():
    given, expected = case("fml.kl_reduction")
    student, teacher = given["student_logits"], given["teacher_logits"]
    check(
        expected,
        batchmean=divergence(teacher, student),
        elementwise_mean=divergence(teacher, student, elements=True),
    )


def test_the_divergence_of_very_large_scores_is_finite():
    far = torch.tensor([[1e4, 0.0, -1e4]])
    for teacher, student in ((far, -far), (-far, far), (far, far)):
        student = student.clone().requires_grad_()
        loss = divergence(teacher, student)
        loss.backward()
        assert loss.isfinite() and student.grad.isfinite().all()


@pytest.mark.parametrize("targets, reached", [("fixed", False), ("moving", True)])
def test_a_target_gets_a_gradient_only_with_the_setting_moving(targets, reached):
    client = fleet(replace(HYPER, targets=targets, alpha=0.0, beta=1.0))[1]["device-0"]
    x = client.data.x
    loss = client.divergence(client.mutual(x), client.model(x))
    loss.backward()
    assert any(p.grad is not None for p in client.mutual.parameters()) == reached
    assert all(p.grad is not None for p in client.model.parameters())


def test_each_device_counts_once_in_the_mean_of_the_shared_networks():
    server, clients = fleet(HYPER)
    up = play(server, clients, 1)[0]
    key = "weights.head.weight"
    assert_close(server.shared()[key], sum(sent[key] for sent in up.values()) / 4)
    server, _ = fleet(HYPER)
    server.begin(1, [])
    story = server.round()
    ask = next(story)
    replies = [Reply(name, 3, up[name]) for name in sorted(up, reverse=True)]
    assert all(ask.problem_with(reply.payload) is None for reply in replies)
    with pytest.raises(StopIteration):
        story.send(replies)
    other = server.shared()[key].clone()
    server, clients = fleet(HYPER)
    play(server, clients, 1)
    assert torch.equal(server.shared()[key], other), "the order of answers must not matter"


def test_a_device_keeps_its_own_network_through_a_restart():
    server, clients = played(PRESENT, HYPER)
    ask, client = next(server.round()), clients["device-0"]
    again = fml.METHOD.Client(network(), DATA["device-0"], HYPER, 7, "device-0", shared_network())
    again.restore(snapshot(client.state()))
    other = fml.METHOD.Server(shared_network(), HYPER, 7)
    other.restore(snapshot(server.state()))
    sent = []
    for half, asked in ((client, ask), (again, next(other.round()))):
        half.begin(5)
        half.receive(snapshot(asked.payload))
        sent.append(snapshot(half.run(asked)))
    assert same(*sent) and same(client.model.state_dict(), again.model.state_dict())
    assert sent[0].keys() == {f"weights.{key}" for key in shared_network().state_dict()}


def test_the_last_evaluation_uses_each_own_network_and_an_empty_broadcast():
    server, clients = played(PRESENT, HYPER)
    assert not server.payload()
    client, x = clients["device-0"], DATA["device-0"].x
    client.receive({})
    own = client.model.eval()
    assert torch.equal(client.predict(x), own(x))


def test_the_cost_is_that_of_the_shared_network():
    server, clients = fleet(HYPER)
    sizes = Sizes(clients["device-0"].model, held=3, mutual=shared_network())
    assert fml.cost(sizes).up == fml.cost(sizes).down == {"weights": parameters(server.model)}
    assert parameters(server.model) != parameters(sizes.model)


@pytest.mark.parametrize(
    "setting, problem",
    [
        ({"alpha": 1.5}, "alpha is 1.5, it must be at least 0 and at most 1"),
        ({"beta": -0.1}, "beta is -0.1, it must be at least 0 and at most 1"),
        ({"kl": "batch"}, "kl is 'batch', it must be one of classes, elements"),
        ({"targets": "no"}, "targets is 'no', it must be one of fixed, moving"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, problem):
    with pytest.raises(ValueError) as error:
        fml.Hyper(**setting)
    assert str(error.value).startswith(problem)


# The plan


SMALL = Network("cnn4", feature_size=12)


def test_a_plan_names_the_shared_network_and_both_halves_build_the_same_one():
    plan = Plan("fml", 3, 1, network=Network("cnn_bn", 64), mutual=SMALL)
    read = read_plan(plan.encode())
    assert read == plan and json.loads(plan.encode())["mutual"]["name"] == "cnn4"
    server, client = plan.server_half(), read.client_half(DATA["device-0"], "a", Network("mlp"))
    assert same(server.model.state_dict(), client.mutual.state_dict())
    assert client.model.embedding_size != client.mutual.embedding_size == 12
    assert plan.digest != replace(plan, mutual=None).digest


def test_the_default_shared_network_is_that_of_the_run_with_other_first_weights():
    plan = Plan("fml", 3, 1, network=SMALL)
    assert "mutual" not in json.loads(plan.encode())
    client = plan.client_half(DATA["device-0"], "a")
    own, shared = client.model.state_dict(), client.mutual.state_dict()
    assert {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in shared.items()}
    assert not same(own, shared), "two networks with equal weights cannot learn from each other"


def test_a_mutual_network_is_refused_for_a_method_that_trains_none():
    words = "fedavg trains no mutual network, but the run has `mutual` cnn4; leave `mutual` out, or take one of .*fml"
    with pytest.raises(SettingsError, match=words) as said:
        Plan("fedavg", 3, 1, mutual=SMALL)
    assert "\n" not in str(said.value)


def test_the_settings_of_coordinator_and_experiment_have_a_table_mutual():
    table = {"name": "cnn4", "feature_size": 12}
    common = {"name": "a", "rounds": 1, "method": {"name": "fml"}, "mutual": table}
    assert decode(CoordinatorSettings, {**common, "classes": 3}).plan().mutual == SMALL
    experiment = decode(Experiment, common)
    assert experiment.plan.mutual == SMALL
    with pytest.raises(SettingsError, match="mutual: no network 'cnn5'"):
        decode(Experiment, {**common, "mutual": {"name": "cnn5"}})
