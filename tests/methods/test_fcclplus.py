"""Tests of FCCL+ against a plain loop, the oracles and values computed by hand."""

import copy
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.edge_client.conversation.hello import plan_for
from protofleet.lab.local.experiment import Experiment
from protofleet.methods import fcclplus
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.contract.cost import Sizes, parameters
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.maths.distillation import non_target_divergence
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.plain import DATA, PRESENT, WITHOUT_2, batches, halves, network, order_of, played
from tests.methods.test_oracles import case, check, gradient, leaf
from tests.methods.tiny import PUBLIC, SHARDS, answer, member, normal, play, same, with_public_set

HYPER = fcclplus.Hyper(
    epochs=2, batch=8, lr=0.004, weight_decay=0.01, public_lr=0.002, temperature=2.0, tau=0.3, off_weight=0.2
)
SIZES = (6, 3)  # Sizes of the batches of the tiny public set.


def adam_steps(model, losses, lr, decay=0.0, fresh=False):
    """Take a step with Adam of torch for each loss; compute each loss only when its step is due."""
    adam = None
    for loss in losses:
        if adam is None or fresh:
            adam = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=decay)
        adam.zero_grad()
        loss().backward()
        adam.step()


def cosine_rows(z):
    """Return for each row its cosines with all other rows, in their order."""
    return torch.stack(
        [
            torch.stack([F.cosine_similarity(a, b, dim=0) for j, b in enumerate(z) if j != i])
            for i, a in enumerate(z)
        ]
    )


def plain_train_loss(model, teacher, x, y, hyper):
    T, own = hyper.temperature, model(x)
    with torch.no_grad():
        other = teacher(x)
    p, q = torch.softmax(other / T, 1), torch.softmax(own / T, 1)
    terms = [
        p[i, j] * (p[i, j].log() - q[i, j].log())
        for i, label in enumerate(y.tolist())
        for j in range(3)
        if j != label
    ]
    return F.cross_entropy(own, y) + T * T * torch.stack(terms).sum() / len(y)


def plain_public_loss(model, x, scores, rows, hyper):
    z = model.embed(x)
    own, n = model.head(z), len(x)
    a, b = ((s - s.mean(0)) / s.std(0, unbiased=True) for s in (own, scores))
    loss = torch.zeros((), dtype=torch.float64)
    for i, j in itertools.product(range(3), range(3)):
        c = sum(a[k, i] * b[k, j] for k in range(n)) / n
        loss = loss + ((c - 1) ** 2 if i == j else hyper.off_weight * (c + 1) ** 2)
    p, q = torch.softmax(rows / hyper.tau, 1), torch.log_softmax(cosine_rows(z) / hyper.tau, 1)
    return loss + hyper.similarity * (p * (p.log() - q)).sum() / n


def plain(hyper, data, rounds=4):
    world, models = network(), {name: network() for name in data}
    teachers = {name: network().eval() for name in data}
    images = halves(fcclplus, hyper)[1]["device-0"].public
    for number, present in enumerate(PRESENT, 1):
        fall = 1 - 0.9 * (number - 1) / rounds if rounds else 1.0
        told = {}
        for name in present:
            model = models[name]
            if hyper.average:
                model.load_state_dict(world.state_dict())
            if hyper.teacher == "global":
                teachers[name] = copy.deepcopy(model).eval()
            steps = (
                lambda model=model, x=x, y=y, teacher=teachers[name]: plain_train_loss(
                    model, teacher, x, y, hyper
                )
                for x, y in batches(model, data[name], hyper.batch, hyper.epochs, order_of(name, number))
            )
            adam_steps(model, steps, hyper.lr * fall, hyper.weight_decay)
            teachers[name] = copy.deepcopy(model).eval()
            model.train(hyper.train_mode)
            with torch.no_grad():
                told[name] = [(model.head(z), cosine_rows(z)) for z in map(model.embed, images)]
        means = [
            [torch.stack(found).mean(0) for found in zip(*of_batch, strict=True)]
            for of_batch in zip(*told.values(), strict=True)
        ]
        for name in present:
            model = models[name].train(hyper.train_mode)
            steps = (
                lambda model=model, x=x, mean=mean: plain_public_loss(model, x, *mean, hyper)
                for x, mean in zip(images, means, strict=True)
            )
            adam_steps(model, steps, hyper.public_lr * fall, fresh=hyper.fresh_adam)
        total = sum(len(data[name].y) for name in present)
        state = {name: models[name].state_dict() for name in present}
        if hyper.average:
            world.load_state_dict(
                {
                    key: sum(len(data[name].y) / total * state[name][key] for name in present)
                    if value.is_floating_point()
                    else state[present[0]][key]
                    for key, value in world.state_dict().items()
                }
            )
    return world.state_dict(), models


def four_rounds(hyper, data, rounds):
    server, clients = halves(fcclplus, hyper, data)
    for half in (server, *clients.values()):
        half.rounds = rounds
    for number, present in enumerate(PRESENT, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"teacher": "global"},
        {"fresh_adam": True},
        {"train_mode": True},
        {"average": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "without one"])
def test_four_rounds_equal_those_of_a_plain_loop(change, data):
    hyper = replace(HYPER, **change)
    server, clients = four_rounds(hyper, data, 4)
    shared, models = plain(hyper, data)
    for key, value in shared.items():
        assert_close(server.state()[f"weights.{key}"], value, rtol=1e-8, atol=1e-8)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-8, atol=1e-8)


def test_the_learning_rate_is_constant_if_the_number_of_rounds_is_unknown():
    server, _ = four_rounds(HYPER, DATA, 0)
    shared, _ = plain(HYPER, DATA, rounds=0)
    assert_close(server.payload()["weights.head.bias"], shared["head.bias"], rtol=1e-8, atol=1e-8)


def test_the_learning_rate_falls_towards_a_tenth():
    assert [HYPER.falling(1.0, number, 10) for number in (1, 2, 10)] == pytest.approx([1.0, 0.91, 0.19])


# Against the oracles


def test_the_correlation_loss_equals_the_oracle():
    given, expected = case("fccl.correlation")
    own, mean = given["logits"], given["average_logits"]
    c = fcclplus.standardised(own).T @ fcclplus.standardised(mean) / len(own)
    check(expected, c=c, loss=fcclplus.correlation_loss(own, mean, given["off_weight"]))


def test_the_non_target_divergence_equals_the_oracle():
    given, expected = case("fccl.non_target")
    T = given["T"]
    loss = T**2 * non_target_divergence(
        given["teacher_logits"] / T, given["student_logits"] / T, given["label"]
    )
    check(expected, loss=loss)


def test_a_class_with_equal_scores_for_all_images_gives_a_bounded_gradient():
    scores = leaf(torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 0.0]]))
    mean = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0]]).double()
    found = gradient(fcclplus.correlation_loss(scores, mean, 0.1), scores)
    assert 0 < float(found[:, 0].norm()) < 10 and float(found.norm()) < 10


@pytest.mark.parametrize(("T", "rises"), [(2.0, True), (3.0, None), (4.0, False)])
def test_the_score_of_the_label_falls_if_the_temperature_exceeds_the_number_of_classes(T, rises):
    """The notes say: with all scores equal, the gradient of the label's own score is 0 at T = C."""
    own, y = leaf(torch.zeros(1, 3)), torch.tensor([0])
    loss = F.cross_entropy(own, y) + T**2 * non_target_divergence(torch.zeros_like(own), own / T, y)
    found = float(gradient(loss, own)[0, 0])
    assert abs(found) < 1e-12 if rises is None else (found < 0) == rises


# The state that a device keeps, and the arrays that are sent


def test_a_device_that_restarts_between_the_phases_sends_the_same_answer():
    server, clients = played(fcclplus, HYPER, rounds=PRESENT[:1])
    there = {name: clients[name] for name in PRESENT[0]}
    server.begin(2, [member(name, client) for name, client in there.items()])
    story = server.round()
    ask = next(story)
    sent = {name: answer(client, ask, 2) for name, client in there.items()}
    again = fcclplus.METHOD.Client(network(), DATA["device-0"], HYPER, 7, "device-0")
    with_public_set(again).restore(snapshot(there["device-0"].state()))
    public = replies_to(story, sent)
    assert same(answer(again, public, 2), answer(there["device-0"], public, 2))
    assert same(weights_of(again.teacher), weights_of(there["device-0"].teacher))


def replies_to(story, sent):
    return story.send([Reply(name, len(DATA[name].y), payload) for name, payload in sent.items()])


def test_the_teacher_is_the_model_before_the_training_on_public_images():
    server, clients = halves(fcclplus, HYPER)
    first = snapshot(weights_of(clients["device-3"].teacher))
    play(server, {name: clients[name] for name in PRESENT[0]}, 1)
    client = clients["device-0"]
    assert not same(weights_of(client.teacher), weights_of(client.model))
    assert same(weights_of(clients["device-3"].teacher), first) and not client.teacher.training


def test_public_images_give_almost_no_gradient_if_all_devices_have_one_model():
    """So devices must compare the models that they have trained, and not the mean of all models."""
    client = halves(fcclplus, replace(HYPER, off_weight=0.0))[1]["device-0"]
    x = client.public[0]
    z = client.model.eval().embed(x)
    same_scores = client.model.head(z).detach(), fcclplus.cosines(z).detach()
    own = client.disagreement(x, *same_scores)
    moved = gradient(own, client.model.head.weight)
    n = len(x)
    assert_close(own, torch.tensor(3 / n**2, dtype=torch.float64), rtol=1e-9, atol=0)  # c_ii = (n - 1) / n
    assert float(moved.norm()) < 1e-9


def test_the_size_of_the_sent_arrays_follows_from_the_public_set():
    server, clients = halves(fcclplus, HYPER)
    server.begin(1, [])
    story = server.round()
    ask = next(story)
    found = answer(clients["device-0"], ask, 1)
    assert found["logits"].shape == (9, 3) and found["cosines"].shape == (6 * 5 + 3 * 2,)
    cost = fcclplus.cost(Sizes(server.model, 3, public=SIZES))
    assert cost.up == cost.down == {"weights": parameters(server.model), "logits": 27, "cosines": 36}
    assert PUBLIC.batches == SIZES


def test_a_repeated_public_image_gives_no_cosine_above_1():
    """Rounding alone would make such a cosine."""
    client = fcclplus.METHOD.Client(network().float(), SHARDS["device-0"], HYPER, 7, "device-0")
    server = with_public_set(fcclplus.METHOD.Server(network().float(), HYPER, 7))
    client.public = (normal(40, 4, seed=1, dtype=torch.float32).repeat(2, 1),)
    server.public = PublicSet(samples=80, batch=80)
    server.begin(1, [])
    ask = next(server.round())
    found = answer(client, ask, 1)
    rounded = fcclplus.cosines(client.model.embed(client.public[0]).detach())
    assert float(rounded.max()) > 1, "otherwise this test shows nothing"
    assert ask.problem_with(found) is None and float(found["cosines"].max()) == 1


@pytest.mark.parametrize("phase", ["train", "public"])
def test_dropout_on_public_images_draws_from_the_generator_of_the_device(phase):
    """Other draws in the same process do not change it, and it changes no other draws."""
    found = []
    for before in (1, 2):
        model = network()
        model.features = nn.Sequential(model.features, nn.Dropout(0.5))
        client = with_public_set(
            fcclplus.METHOD.Client(model, DATA["device-0"], replace(HYPER, train_mode=True), 7, "device-0")
        )
        told = snapshot(client.run(Ask("train"))) if phase == "public" else {}
        torch.manual_seed(before)
        state = torch.get_rng_state()
        found.append(snapshot(client.run(Ask(phase, told))))
        assert torch.equal(torch.get_rng_state(), state)
    assert same(*found)


def test_a_cosine_above_1_is_refused():
    server, clients = halves(fcclplus, HYPER)
    server.begin(1, [])
    ask = next(server.round())
    found = dict(answer(clients["device-0"], ask, 1))
    found["cosines"] = found["cosines"] + 2
    assert "above 1" in ask.problem_with(found).message


def test_devices_may_have_different_networks_if_models_are_not_averaged():
    plan = Plan("fcclplus", 3, 1, hyper={"average": False})
    assert plan.variant.alike == "nothing" and plan.variant.reports == "personal"
    assert Plan("fcclplus", 3, 1).variant.alike == "network"


@pytest.mark.parametrize(
    "setting", [{"teacher": "mine"}, {"tau": 0.0}, {"lr_last": 0.0}, {"similarity": -1.0}]
)
def test_an_impossible_setting_is_refused_by_its_name(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        fcclplus.Hyper(**setting)


@pytest.mark.parametrize(("classes", "temperature"), [(2, 2.0), (2, 3.0), (3, 3.0), (3, 3.5)])
def test_a_temperature_of_at_least_the_number_of_classes_is_refused_before_the_run(classes, temperature):
    words = f"method.temperature is {temperature:g}, and the run has {classes} classes.*below {classes}"
    method = {"name": "fcclplus", "temperature": temperature}
    with pytest.raises(SettingsError, match=words):
        decode(Experiment, {"name": "a", "rounds": 1, "classes": classes, "method": method})
    with pytest.raises(SettingsError, match=words):
        CoordinatorSettings("a", 1, classes, method)
    data = SimpleNamespace(classes=classes, names=())
    with pytest.raises(SettingsError, match=words):
        plan_for(data, Plan("fcclplus", classes, 1, hyper={"temperature": temperature}).encode())
    cooler = Plan("fcclplus", classes, 1, hyper={"temperature": 1.5})
    assert plan_for(data, cooler.encode()) == cooler


@pytest.mark.parametrize(("temperature", "draws"), [(1.5, True), (2.0, False), (3.0, False)])
def test_a_step_raises_the_score_of_the_label_only_at_a_temperature_below_the_classes(temperature, draws):
    """Such a temperature is refused for this reason; the example has two classes and an untrained network."""
    scores = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 0, 1])
    teacher = torch.zeros_like(scores.detach())
    loss = F.cross_entropy(scores, y)
    loss = loss + temperature**2 * non_target_divergence(teacher, scores / temperature, y)
    (gradient,) = torch.autograd.grad(loss, scores)
    own = -gradient[torch.arange(4), y]
    assert bool((own > 1e-12).all()) == draws
