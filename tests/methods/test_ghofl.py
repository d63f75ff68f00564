"""Tests of GH-OFL's three heads against Gaussians of all samples, and of answers that no samples can give."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close

from protofleet.methods import ghofl
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.maths.grams import symmetric_of, triangle_of
from protofleet.methods.parts.rules import Gaussians, Linear
from protofleet.protocol.settings.reader import SettingsError
from tests.methods.plain import (
    DATA,
    PRESENT,
    counted_features,
    demand_answer_is_left_out,
    halves,
    network,
    played,
)
from tests.methods.tiny import Shard, normal, play, same

D, CLASSES = 6, 3
EXACT = {"rtol": 1e-9, "atol": 1e-9}
HEADS = ("nb", "lda", "qda")
every_head = pytest.mark.parametrize("head", HEADS)


def scores_of(x, z, y, hyper):
    """Return the scores of the features x [B, D] by Gaussians of all samples z [N, D], class by class."""
    parts = {label: z[y == label] for label in range(CLASSES)}
    gaps = torch.cat([part - part.mean(dim=0) for part in parts.values()])
    pooled = gaps.T @ gaps / (len(z) - CLASSES)
    found = []
    for label in range(CLASSES):
        part = parts[label]
        if hyper.head == "nb":
            deviation = part.var(dim=0, correction=0).clamp(min=1e-6).sqrt()
            density = Normal(part.mean(dim=0), deviation).log_prob(x).sum(dim=1)
        else:
            own = torch.cov(part.T) if hyper.head == "qda" else pooled
            sphere = float(own.trace()) / D * torch.eye(D, dtype=torch.float64)
            S = (
                (1 - hyper.shrinkage) * own
                + hyper.shrinkage * sphere
                + 1e-6 * torch.eye(D, dtype=torch.float64)
            )
            density = MultivariateNormal(part.mean(dim=0), S).log_prob(x)
        found.append(density + math.log(len(part) / len(z)))
    return torch.stack(found, dim=1) + D / 2 * math.log(2 * math.pi)


def check_scores(found, wanted, head):
    """Compare scores; those of lda lack a term that all classes share."""
    if head == "lda":
        found, wanted = (scores - scores.mean(dim=1, keepdim=True) for scores in (found, wanted))
    assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize("settings", [{}, {"features": "raw", "shrinkage": 0.3, "least_samples": 1}])
@every_head
def test_the_scores_after_each_round_equal_those_of_gaussians_of_all_samples_so_far(head, settings):
    hyper = ghofl.Hyper(head=head, **settings)
    for last in range(1, len(PRESENT) + 1):
        server, clients = played(ghofl, hyper, rounds=PRESENT[:last])
        seen = sorted({device for present in PRESENT[:last] for device in present})
        z, y = (
            torch.cat(part)
            for part in zip(*(counted_features(DATA[name], hyper) for name in seen), strict=True)
        )
        client = clients["device-1"]
        client.receive(server.payload())
        client.model.eval()
        x = DATA["device-1"].x
        own, _ = counted_features(Shard(x, torch.zeros(len(x), dtype=torch.int64)), hyper)
        check_scores(client.predict(x), scores_of(own, z, y, hyper), head)


@every_head
def test_the_head_does_not_depend_on_the_split_of_samples_over_devices(head):
    whole = Shard(*(torch.cat([getattr(part, name) for part in DATA.values()]) for name in ("x", "y")))
    split = {f"part-{i}": Shard(whole.x[i::3], whole.y[i::3]) for i in range(3)}
    hyper = ghofl.Hyper(head=head, least_samples=1)
    first, *others = (
        played(ghofl, hyper, data, (tuple(data),))[0].payload() for data in (DATA, split, {"all": whole})
    )
    for other in others:
        for name, value in first.items():
            assert_close(value, other[name], **EXACT)


@every_head
def test_the_order_and_the_round_of_answers_and_repeated_answers_change_no_bit(head):
    hyper, names = ghofl.Hyper(head=head), tuple(DATA)
    once = played(ghofl, hyper, rounds=(names,))[0].payload()
    for rounds in ((names[::-1],), tuple((name,) for name in names[::-1]), (names, names[1:3], names)):
        assert same(played(ghofl, hyper, rounds=rounds)[0].payload(), once)


@every_head
def test_a_class_that_no_device_holds_has_zeros_and_is_never_predicted(head):
    data = {name: Shard(part.x[part.y < 2], part.y[part.y < 2]) for name, part in DATA.items()}
    server, clients = played(ghofl, ghofl.Hyper(head=head), data, (tuple(data),))
    for value in server.payload().values():
        assert not value[2].any() and value[0].any()
    clients["device-0"].receive(server.payload())
    scores = clients["device-0"].predict(DATA["device-0"].x)
    assert (scores[:, 2] == -math.inf).all() and scores[:, :2].isfinite().all()


@every_head
def test_a_device_whose_examples_are_lowered_has_less_weight_in_all_sums(head):
    """The coordinator lowers the examples of a device that has far more than the others."""
    server, clients = halves(ghofl, ghofl.Hyper(head=head, least_samples=1))
    again, _ = halves(ghofl, ghofl.Hyper(head=head, least_samples=1))
    sent = {name: clients[name].run(Ask("describe")) for name in ("device-0", "device-1")}
    halved = {"device-0": 12, "device-1": 18}
    server.answers.keep(Reply(name, halved[name], sent[name]) for name in sent)
    data = DATA["device-0"]
    half = Shard(data.x.repeat(50, 1), data.y.repeat(50))
    client = ghofl.METHOD.Client(network(), half, ghofl.Hyper(head=head), 7, "device-0")
    again.answers.keep(
        [Reply("device-0", 12, client.run(Ask("describe"))), Reply("device-1", 18, sent["device-1"])]
    )
    one, other = (s.solve(s.answers.replies()) for s in (server, again))
    for name, value in one.items():
        assert_close(value, other[name], **EXACT)


def spoilt_scatter(sent, value):
    matrix = symmetric_of(sent["scatter"], D)
    matrix[..., 0, 1] = matrix[..., 1, 0] = value
    return {**sent, "scatter": triangle_of(matrix)}


@pytest.mark.parametrize(
    "head, spoil, problem",
    [
        ("nb", lambda sent: {**sent, "squares": sent["squares"] - 5}, "squares has a number "),
        ("nb", lambda sent: {**sent, "squares": sent["squares"] * 1.01}, "squares has a row with a sum of 6.06, ab"),
        ("lda", lambda sent: spoilt_scatter(sent, 9.0), "scatter about the class means has an eigenvalue of -"),
        ("lda", lambda sent: {**sent, "scatter": sent["scatter"] + 1}, "scatter has a trace of "),
        ("lda", lambda sent: {**sent, "scatter": -9 * sent["scatter"]}, "scatter has -"),
        ("qda", lambda sent: spoilt_scatter(sent, 9.0), "scatter about the class means has an eigenvalue of -"),
        ("qda", lambda sent: {**sent, "means": sent["means"] * 1.05}, "scatter has a trace of "),
    ],
)  # fmt: skip
def test_an_answer_that_no_samples_can_give_is_not_used_and_the_round_continues(head, spoil, problem, caplog):
    server, clients = halves(ghofl, ghofl.Hyper(head=head))
    demand_answer_is_left_out(server, clients, spoil)
    assert f"the answer of device-0 to round 1 is not used: {problem}" in caplog.text
    assert all(value.isfinite().all() for value in server.payload().values())


def plan_of(head, width, classes=10, **settings):
    network = Network("mlp", embedding_size=width)
    return Plan("ghofl", classes, 1, size=8, channels=1, network=network, hyper={"head": head, **settings})


@every_head
def test_an_honest_answer_in_float32_is_used_even_with_fewer_samples_than_numbers(head, caplog):
    few = Shard(normal(7, 1, 8, 8).float(), torch.tensor([0, 0, 0, 1, 1, 1, 2]))
    plan = plan_of(head, 64, 3, least_samples=1)
    server, client = plan.server_half(), plan.client_half(few, "a")
    play(server, {"a": client}, 1)
    assert [reply.device for reply in server.answers.replies()] == ["a"]
    assert ("the classes 0, 1, 2 have fewer samples than the 64 numbers" in caplog.text) == (head == "qda")
    client.receive(server.payload())
    assert client.predict(few.x).isfinite().all()


@pytest.mark.parametrize(
    "head, up, down", [("nb", 10_260, 10_250), ("lda", 136_468, 5_130), ("qda", 1_318_420, 1_318_410)]
)
def test_the_cost_has_the_numbers_of_the_closed_form(head, up, down):
    plan = plan_of(head, 512)
    cost = plan.variant.cost(Sizes(plan.model(), held=10))
    assert sum(cost.up.values()) == up and sum(cost.last.values()) == down and not cost.down


def test_qda_with_more_bytes_than_most_bytes_is_refused_before_the_run():
    with pytest.raises(
        SettingsError, match="has 5,273,760 bytes, above method.most_bytes = 5,000,000; raise"
    ):
        plan_of("qda", 512, most_bytes=5_000_000).demand_fit()
    plan_of("lda", 512, most_bytes=1_000).demand_fit()
    plan_of("qda", 512).demand_fit()


def test_only_lda_is_a_linear_rule():
    for head, kind in {"nb": Gaussians, "lda": Linear, "qda": Gaussians}.items():
        server, clients = played(ghofl, ghofl.Hyper(head=head), rounds=(tuple(DATA),))
        clients["device-0"].receive(server.payload())
        assert type(clients["device-0"].rule()) is kind


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"head": "svm"}, "head is 'svm', it must be one of nb, lda, qda"),
        ({"shrinkage": 0.0}, "shrinkage is 0.0, it must be at least 0.001 and at most 1"),
        ({"most_bytes": 0}, "most_bytes is 0, it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(settings, problem):
    with pytest.raises(ValueError) as error:
        ghofl.Hyper(**settings)
    assert str(error.value).startswith(problem)
