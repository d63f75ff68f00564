"""Tests of Fed3R against least squares on all samples and AFL's recursion, and of answers that no samples give."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from protofleet.lab.contract.methods import SHORT
from protofleet.methods import fed3r
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.maths.grams import symmetric_of, triangle_of
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
from tests.methods.tiny import Shard, play, same
from tests.support.small_federation import shard, simulation

D, CLASSES = 6, 3
EXACT = {"rtol": 1e-9, "atol": 1e-9}
PLAIN = {"intercept": False, "normalise": False}
OTHER_SETTINGS = [
    {},
    {"intercept": False},
    {"normalise": False, "features": "raw", "lam": 0.3},
    {"penalty": "absolute", "lam": 2.0, "least_samples": 1},
]


def least_squares(z, y, hyper):
    """Return the head of all samples: least squares with a row of the penalty for each number of a feature."""
    x = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], dim=1) if hyper.intercept else z
    lam = hyper.lam * (float(x.square().sum()) / x.shape[1] if hyper.penalty == "relative" else 1.0)
    rows = torch.cat([x, math.sqrt(lam) * torch.eye(x.shape[1], dtype=x.dtype)])
    targets = torch.zeros(len(rows), CLASSES, dtype=x.dtype)
    targets[torch.arange(len(y)), y] = 1.0
    head = torch.linalg.lstsq(rows, targets).solution.T
    return torch.stack([row / max(float(row[:D].norm()), 1e-6) for row in head]) if hyper.normalise else head


@pytest.mark.parametrize("settings", OTHER_SETTINGS)
def test_the_head_after_each_round_is_least_squares_on_all_samples_so_far(settings):
    hyper = fed3r.Hyper(**settings)
    for last in range(1, len(PRESENT) + 1):
        server, clients = played(fed3r, hyper, rounds=PRESENT[:last])
        seen = sorted({device for present in PRESENT[:last] for device in present})
        parts = [counted_features(DATA[device], hyper) for device in seen]
        z, y = (torch.cat(part) for part in zip(*parts, strict=True))
        assert_close(server.payload()["head"], least_squares(z, y, hyper), **EXACT)
    clients["device-1"].receive(server.payload())
    x = DATA["device-1"].x
    own, _ = counted_features(Shard(x, torch.zeros(len(x), dtype=torch.int64)), hyper)
    head = server.payload()["head"]
    clients["device-1"].model.eval()
    by_hand = own @ head[:, :D].T + (head[:, D] if hyper.intercept else 0)
    assert_close(clients["device-1"].predict(x), by_hand, **EXACT)


def test_the_head_without_penalty_intercept_and_normalisation_equals_that_of_afl():
    hyper = fed3r.Hyper(**PLAIN, lam=0.0)
    server, _ = played(fed3r, hyper, rounds=(tuple(DATA),))
    gamma, eye, joined, total = 0.5, torch.eye(D, dtype=torch.float64), None, None
    for device in DATA:
        z, y = counted_features(DATA[device], hyper)
        own = z.T @ z + gamma * eye
        head = torch.linalg.solve(own, z.T @ torch.eye(CLASSES, dtype=torch.float64)[y])
        both = own if total is None else total + own
        joined = head if total is None else torch.linalg.solve(both, total @ joined + own @ head)
        total = both
    cleaned = torch.linalg.solve(total - len(DATA) * gamma * eye, total @ joined)
    assert_close(server.payload()["head"], cleaned.T, **EXACT)


def test_the_head_does_not_depend_on_the_split_of_samples_over_devices():
    whole = Shard(*(torch.cat([getattr(part, name) for part in DATA.values()]) for name in ("x", "y")))
    split = {f"part-{i}": Shard(whole.x[i::3], whole.y[i::3]) for i in range(3)}
    heads = [
        played(fed3r, fed3r.Hyper(least_samples=1), data, (tuple(data),))[0].payload()["head"]
        for data in (DATA, split, {"all": whole})
    ]
    assert_close(heads[0], heads[1], **EXACT)
    assert_close(heads[0], heads[2], **EXACT)


def test_the_order_and_the_round_of_answers_and_repeated_answers_change_no_bit():
    hyper, names = fed3r.Hyper(), tuple(DATA)
    once = played(fed3r, hyper, rounds=(names,))[0].payload()
    for rounds in ((names[::-1],), tuple((name,) for name in names[::-1]), (names, names[1:3], names)):
        assert same(played(fed3r, hyper, rounds=rounds)[0].payload(), once)


def test_a_class_that_no_device_holds_has_a_row_of_zeros_and_is_never_predicted():
    data = {name: Shard(part.x[part.y < 2], part.y[part.y < 2]) for name, part in DATA.items()}
    server, clients = played(fed3r, fed3r.Hyper(), data, (tuple(data),))
    head = server.payload()["head"]
    assert head.shape == (CLASSES, D + 1) and not head[2].any() and head[:2].all()
    clients["device-0"].receive(server.payload())
    scores = clients["device-0"].predict(DATA["device-0"].x)
    assert (scores[:, 2] == -math.inf).all() and scores[:, :2].isfinite().all()


def test_the_values_of_the_arrays_do_not_grow_with_the_number_of_samples():
    """Sums would grow, and the coordinator refuses an array with a norm above 1e6."""
    data = DATA["device-0"]
    many = Shard(data.x.repeat(50, 1), data.y.repeat(50))
    few, more = (
        fed3r.METHOD.Client(network(), part, fed3r.Hyper(), 7, "a").run(Ask("describe"))
        for part in (data, many)
    )
    for name in ("gram", "targets"):
        assert_close(few[name], more[name], **EXACT)
    assert float(symmetric_of(few["gram"], D + 1).trace()) == pytest.approx(D + 1)


def test_a_device_whose_examples_are_lowered_has_less_weight_in_all_sums():
    """The coordinator lowers the examples of a device that has far more than the others."""
    hyper = fed3r.Hyper(least_samples=1)
    server, clients = halves(fed3r, hyper)
    sent = {name: clients[name].run(Ask("describe")) for name in ("device-0", "device-1")}
    server.answers.keep([Reply("device-0", 6, sent["device-0"]), Reply("device-1", 18, sent["device-1"])])
    found = server.solve(server.answers.replies())["head"]
    (z, y), (z1, y1) = (
        counted_features(DATA[name], hyper) for name in sent
    )  # device-0 has 24 samples, of which 6 count.
    both = least_squares(torch.cat([z, *[z1] * 4]), torch.cat([y, *[y1] * 4]), hyper)
    assert_close(found, both, **EXACT)
    assert server.monitor()["samples.left_out"] == 0.0


def changed(sent, change):
    matrix = symmetric_of(sent["gram"], D + 1)
    change(matrix)
    return {**sent, "gram": triangle_of(matrix)}


def negative_diagonal(matrix):
    matrix[2, 2] = -0.5


def large_trace(matrix):
    matrix *= 1.01


def negative_eigenvalue(matrix):
    matrix[0, 1] = matrix[1, 0] = 3.0


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (lambda sent: changed(sent, negative_diagonal), "gram has -0.5 on its diagonal, below 0"),
        (lambda sent: changed(sent, large_trace), "gram has a trace of 7.07, above 7.007"),
        (
            lambda sent: changed(sent, negative_eigenvalue),
            "gram about the class means has an eigenvalue of -",
        ),
        (lambda sent: {**sent, "targets": 1.02 * sent["targets"]}, "gram about the class means has an ei"),
    ],
)
def test_an_answer_that_no_samples_can_give_is_not_used_and_the_round_continues(spoil, problem, caplog):
    server, clients = halves(fed3r, fed3r.Hyper(least_samples=1))
    demand_answer_is_left_out(server, clients, spoil)
    assert f"the answer of device-0 to round 1 is not used: {problem}" in caplog.text
    assert server.payload()["head"].isfinite().all()


def test_an_honest_answer_in_float32_is_used_even_with_fewer_samples_than_numbers():
    generator = torch.Generator().manual_seed(3)
    few = Shard(torch.randn(5, 1, 8, 8, generator=generator), torch.tensor([0, 0, 0, 1, 1]))
    chosen = Network("mlp", embedding_size=64)
    plan = Plan("fed3r", 3, 1, size=8, channels=1, network=chosen, hyper={"least_samples": 1})
    server, client = plan.server_half(), plan.client_half(few, "a")
    play(server, {"a": client}, 1)
    assert [reply.device for reply in server.answers.replies()] == ["a"]


def some(count, name="device-0"):
    return Shard(DATA[name].x[:count], DATA[name].y[:count])


def test_too_few_samples_for_a_run_without_penalty_are_refused_with_the_setting():
    hyper = fed3r.Hyper(lam=0.0, least_samples=1)
    words = (
        "fed3r: method.lam is 0, and the devices have 6 samples, fewer than the 6 features and the intercept; set "
        "method.lam above 0"
    )
    with pytest.raises(SettingsError, match=words):
        played(fed3r, hyper, {"a": some(6)}, (("a",),))
    server, _ = played(fed3r, hyper, {"a": some(7)}, (("a",),))
    assert server.lacking() == ""


def test_a_late_device_can_add_the_missing_samples_of_a_run_without_penalty():
    server, clients = halves(
        fed3r, fed3r.Hyper(lam=0.0, least_samples=1), {"a": some(6), "b": some(3, "device-1")}
    )
    server.rounds = 2
    play(server, {"a": clients["a"]}, 1)
    assert not server.payload() and server.lacking().startswith(
        "fed3r: method.lam is 0, and the devices have 6 samples, "
    )
    play(server, {"b": clients["b"]}, 2)
    assert server.payload()["head"].isfinite().all() and server.lacking() == ""


def test_a_run_without_penalty_and_with_too_few_samples_ends_with_the_reason(tmp_path, caplog):
    shards = {f"device-{i}": shard(0, n=4) for i in range(3)}
    hyper = {"lam": 0.0, "least_samples": 1}
    with pytest.raises(
        SettingsError, match="the devices have 12 samples, fewer than the 16 features and the intercept; "
    ):
        simulation(tmp_path, "fed3r", policy=replace(SHORT, rounds=1), hyper=hyper, shards=shards).run()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("intercept, up, down", [(True, 136_991, 5_130), (False, 136_468, 5_120)])
def test_the_cost_has_the_numbers_of_the_closed_form(intercept, up, down):
    plan = Plan("fed3r", 10, 1, network=Network("mlp", embedding_size=512), hyper={"intercept": intercept})
    cost = plan.variant.cost(Sizes(plan.model(), held=10))
    assert sum(cost.up.values()) == up and cost.last == {"head": down} and not cost.down


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"lam": -0.1}, "lam is -0.1, it must be at least 0"),
        ({"penalty": "squared"}, "penalty is 'squared', it must be one of relative, absolute"),
        ({"features": "unit"}, "features is 'unit', it must be one of normalised, raw"),
        ({"least_samples": 0}, "least_samples is 0, it must be at least 1"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(settings, problem):
    with pytest.raises(ValueError) as error:
        fed3r.Hyper(**settings)
    assert str(error.value).startswith(problem)
