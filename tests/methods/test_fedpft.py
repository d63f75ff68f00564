"""Tests of FedPFT against a plain loop with gradients by hand, and of answers that are no mixtures."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from protofleet.methods import fedpft
from protofleet.methods.contract.base import Ask, Member, Reply, seeded
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, PRESENT, counted_features, halves, played
from tests.methods.tiny import Shard, play, same

D, CLASSES = 6, 3
EXACT = {"rtol": 1e-9, "atol": 1e-9}
QUICK = {"server_epochs": 4, "server_batch": 8, "server_lr": 0.01}


def noise_of(z, hyper):
    """Return a function that gives noise [N, D] the covariance of the samples z."""
    gaps = z - z.mean(dim=0)
    S = gaps.T @ gaps / len(z) + 1e-6 * torch.eye(D, dtype=torch.float64)
    if hyper.covariance == "full":
        return lambda noise: noise @ torch.linalg.cholesky(S).T
    variances = S.diagonal() if hyper.covariance == "diag" else S.trace() / D
    return lambda noise: noise * variances**0.5


def plain(devices, hyper):
    """Return the head [C, D + 1] from one Gaussian for each class of each device."""
    drawn, labels = [], []
    for device in sorted(devices):
        z, y = counted_features(DATA[device], hyper)
        for label in y.unique().tolist():
            own, generator = z[y == label], seeded(7, "server", device, label)
            torch.multinomial(torch.ones(1, dtype=torch.float64), len(own), True, generator=generator)
            noise = torch.randn(len(own), D, generator=generator, dtype=torch.float64)
            drawn.append(own.mean(dim=0) + noise_of(own, hyper)(noise))
            labels += [label] * len(own)
    x, y, order = torch.cat(drawn), torch.tensor(labels), seeded(7, "server", "order")
    head, x = torch.zeros(CLASSES, D + 1, dtype=torch.float64), torch.cat([x, torch.ones(len(x), 1)], dim=1)
    m, v, step, one_hot = torch.zeros_like(head), torch.zeros_like(head), 0, torch.eye(CLASSES).double()
    torch.randint(1 << 62, (), generator=order)
    for _ in range(hyper.server_epochs):
        for rows in torch.randperm(len(y), generator=order).split(hyper.server_batch):
            gradient = ((x[rows] @ head.T).softmax(dim=1) - one_hot[y[rows]]).T @ x[rows] / len(rows)
            m, v, step = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2, step + 1
            root = (v / (1 - 0.999**step)).sqrt() + 1e-8
            head = head * (1 - 0.01 * hyper.server_lr) - hyper.server_lr * m / (1 - 0.9**step) / root
    return head


@pytest.mark.parametrize(
    "settings", [{}, {"covariance": "diag", "features": "raw"}, {"covariance": "full", "least_samples": 1}]
)
def test_the_head_after_each_round_equals_that_of_a_plain_loop(settings):
    hyper = fedpft.Hyper(**settings, **QUICK)
    for last in range(1, len(PRESENT) + 1):
        server, clients = played(fedpft, hyper, rounds=PRESENT[:last])
        seen = {device for present in PRESENT[:last] for device in present}
        assert_close(server.payload()["head"], plain(seen, hyper), **EXACT)
    client, head, x = clients["device-1"], server.payload()["head"], DATA["device-1"].x
    client.receive(server.payload())
    client.model.eval()
    own, _ = counted_features(Shard(x, torch.zeros(len(x), dtype=torch.int64)), hyper)
    assert_close(client.predict(x), own @ head[:, :D].T + head[:, D], **EXACT)


@pytest.mark.parametrize("settings", [{}, {"parts": 3, "covariance": "full"}])
def test_the_order_and_the_round_of_answers_and_repeated_answers_change_no_bit(settings):
    hyper, names = fedpft.Hyper(**settings, **QUICK), tuple(DATA)
    once = played(fedpft, hyper, rounds=(names,))[0].payload()
    for rounds in ((names[::-1],), tuple((name,) for name in names[::-1]), (names, names[1:3], names)):
        assert same(played(fedpft, hyper, rounds=rounds)[0].payload(), once)


def test_a_class_that_no_device_holds_has_a_row_of_zeros_and_is_never_predicted():
    data = {name: Shard(part.x[part.y < 2], part.y[part.y < 2]) for name, part in DATA.items()}
    server, clients = played(fedpft, fedpft.Hyper(**QUICK), data, (tuple(data),))
    head = server.payload()["head"]
    assert head.shape == (CLASSES, D + 1) and not head[2].any() and head[:2].all()
    clients["device-0"].receive(server.payload())
    scores = clients["device-0"].predict(DATA["device-0"].x)
    assert (scores[:, 2] == -math.inf).all() and scores[:, :2].isfinite().all()


def test_the_drawn_noise_differs_between_devices_and_classes():
    hyper = fedpft.Hyper(least_samples=1)
    server, clients = halves(fedpft, hyper)
    sent = snapshot(clients["device-0"].run(Ask("describe")))
    sent["mixtures"][:] = sent["mixtures"][0]
    rows = server.drawn([Reply(name, 24, sent) for name in ("device-0", "device-1")])
    assert len(rows.x) == 48 and len({tuple(row) for row in rows.x.tolist()}) == 48
    again = server.drawn([Reply("device-1", 24, sent)])
    assert torch.equal(again.x, rows.x[24:]) and torch.equal(again.y, rows.y[24:])


def test_the_server_draws_at_most_its_limit_and_the_same_share_of_each_class():
    server, clients = halves(fedpft, fedpft.Hyper(least_samples=1, most_drawn=21))
    sent = snapshot(clients["device-0"].run(Ask("describe")))
    sent["counts"] = torch.tensor([40_000_000, 20_000_000, 10_000_000])
    assert server.drawn([Reply("a", 70_000_000, sent)]).y.bincount().tolist() == [12, 6, 3]


@pytest.mark.parametrize(
    "settings, change, problem",
    [
        ({}, lambda rows: rows[:, 0].fill_(0.5), "mixtures has weights with a sum of 0.5, which must be 1"),
        ({"parts": 2}, lambda rows: rows[:, 0].fill_(-1.0), "mixtures has a weight of -1, below 0"),
        ({}, lambda rows: rows[1, -1:].fill_(1e-9), "mixtures has a variance of 1e-09, below 1e-08"),
        ({"covariance": "full"}, lambda rows: rows[1, -1:].fill_(-1.0), "mixtures has a covariance that is "),
        ({}, lambda rows: rows[0, 1 : D + 1].fill_(2.0), "mixtures has a part with a mean squared norm of 2"),
        (
            {"covariance": "diag"},
            lambda rows: rows[0, -2:].fill_(5.0),
            "mixtures has a part with a mean squa",
        ),
    ],
)
def test_an_answer_that_no_samples_can_give_is_not_used_and_the_round_continues(
    settings, change, problem, caplog
):
    server, clients = halves(fedpft, fedpft.Hyper(least_samples=1, **settings, **QUICK))
    sent = {name: snapshot(clients[name].run(Ask("describe"))) for name in ("device-0", "device-1")}
    server.begin(1, [Member(name, len(DATA[name].y)) for name in sent])
    story = server.round()
    ask = next(story)
    change(sent["device-0"]["mixtures"])
    assert ask.problem_with(sent["device-0"], 24) is None
    with pytest.raises(StopIteration):
        story.send([Reply(name, len(DATA[name].y), answer) for name, answer in sent.items()])
    assert [reply.device for reply in server.answers.replies()] == ["device-1"]
    assert f"the answer of device-0 to round 1 is not used: {problem}" in caplog.text


def test_a_mixture_of_zeros_gives_features_of_zeros():
    server, _ = halves(fedpft, fedpft.Hyper(**QUICK))
    sent = {
        "mixtures": torch.zeros(1, D + 2).double(),
        "labels": torch.tensor([1]),
        "counts": torch.tensor([4]),
    }
    assert not server.refusal(Reply("a", 4, sent))
    assert torch.equal(server.drawn([Reply("a", 4, sent)]).x, torch.zeros(4, D).double())


@pytest.mark.parametrize("covariance", ["spherical", "diag", "full"])
def test_an_honest_answer_in_float32_is_used_even_with_fewer_samples_than_numbers(covariance):
    generator = torch.Generator().manual_seed(3)
    few = Shard(torch.randn(5, 1, 8, 8, generator=generator), torch.tensor([0, 0, 0, 1, 1]))
    chosen = Network("mlp", embedding_size=64)
    hyper = {"least_samples": 1, "covariance": covariance, "parts": 3}
    plan = Plan("fedpft", 3, 1, size=8, channels=1, network=chosen, hyper=hyper)
    server, client = plan.server_half(), plan.client_half(few, "a")
    play(server, {"a": client}, 1)
    (reply,) = server.answers.replies()
    assert reply.payload["mixtures"].dtype == torch.float32 and server.payload()["head"].isfinite().all()


@pytest.mark.parametrize(
    "settings, up",
    [
        ({}, 5_160),
        ({"covariance": "diag"}, 10 * (2 * 512 + 1 + 2)),
        ({"covariance": "full", "parts": 2}, 10 * (2 * (512 + 512 * 513 // 2 + 1) + 2)),
    ],
)
def test_the_cost_has_the_numbers_of_the_closed_form(settings, up):
    plan = Plan("fedpft", 10, 1, network=Network("mlp", embedding_size=512), hyper=settings)
    cost = plan.variant.cost(Sizes(plan.model(), held=10))
    assert sum(cost.up.values()) == up and cost.last == {"head": 5_130} and not cost.down


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"covariance": "tied"}, "covariance is 'tied', it must be one of spherical, diag, full"),
        ({"parts": 0}, "parts is 0, it must be at least 1"),
        ({"server_lr": 0.0}, "server_lr is 0.0, it must be above 0"),
        ({"most_drawn": 0}, "most_drawn is 0, it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(settings, problem):
    with pytest.raises(ValueError) as error:
        fedpft.Hyper(**settings)
    assert str(error.value).startswith(problem)
