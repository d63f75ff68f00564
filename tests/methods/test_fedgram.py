"""Tests of FedGram against a plain loop over the sent arrays, of its rounding, and of answers of no samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from protofleet.methods import fedgram
from protofleet.methods.contract.base import Ask, Member, Reply
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.private_sums import SumNoise
from protofleet.methods.parts import rounded_moments, whole_moments
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.statistics import with_stated_counts
from tests.methods.plain import DATA, PRESENT, counted_features, halves, network, played
from tests.methods.tiny import Shard, play, same

D, CLASSES = 6, 3
W = D + 1
LAMS = [0.1, 10**-0.5, 1, 10**0.5, 10, 10**1.5, 100, 10**2.5, 1000, 10**3.5, 10_000]


def rows_and_signs(data, hyper):
    """Return the rows (phi, 1) and the targets of 1 and -1 that count on a device."""
    z, y = counted_features(data, hyper)
    signs = [[1.0 if label == c else -1.0 for c in range(CLASSES)] for label in y.tolist()]
    return torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], dim=1), torch.tensor(signs, dtype=z.dtype)


def number(code, scale):
    return (code - 128) * scale / 127


def sums(sent):
    """Return G, B and n of an answer, from its codes one by one."""
    n, scales = int(sent["samples"]), sent["scales.factor"].tolist()
    G = float(sent["tail"]) * n * torch.eye(W, dtype=torch.float64)
    for codes, scale in zip(sent["factor"].tolist(), scales, strict=True):
        row = torch.tensor([number(code, scale) for code in codes], dtype=torch.float64)
        G += n * torch.outer(row, row)
    B = [
        [n * number(code, scale) for code in codes]
        for codes, scale in zip(sent["targets"].tolist(), sent["scales.targets"].tolist(), strict=True)
    ]
    return G, torch.tensor(B, dtype=torch.float64).T, n


def plain(answers, lam):
    """Return the head [C, W] of these answers, in the order of the devices' names."""
    return plain_of([sums(answers[name]) for name in sorted(answers)], lam)


def plain_of(found, lam):
    """Return the head [C, W] of G, B and n of each device."""
    c = float(sum(G for G, _, _ in found).trace()) / sum(n for _, _, n in found) / 513

    def head(some, lam):
        G, B = (sum(one[k] for one in some) for k in (0, 1))
        return torch.linalg.solve(G + lam * c * torch.eye(W, dtype=torch.float64), B)

    def error(lam):
        total = 0.0
        for k, (G, B, n) in enumerate(found):
            H = head(found[:k] + found[k + 1 :], lam)
            total += float((H.T @ G @ H).trace() - 2 * (H.T @ B).trace()) + n * CLASSES
        return total

    best = lam or (min(LAMS, key=error) if len(found) > 1 else 1.0)
    return head(found, best).T


@pytest.mark.parametrize("settings", [{}, {"rank": 2, "features": "raw", "least_samples": 1}, {"lam": 40.0}])
def test_the_head_after_each_round_equals_that_of_a_plain_loop(settings):
    hyper = fedgram.Hyper(**settings)
    server, clients = halves(fedgram, hyper)
    answers = {}
    for round_number, present in enumerate(PRESENT, 1):
        (sent,) = play(server, {name: clients[name] for name in present}, round_number)
        answers |= sent
        wanted = plain(answers, hyper.lam)
        known = torch.tensor([any(label in DATA[name].y for name in answers) for label in range(CLASSES)])
        assert known.all() and server.payload()["head"].dtype == torch.float16
        assert torch.equal(server.payload()["head"], wanted.half())
    client, x = clients["device-1"], DATA["device-1"].x
    client.receive(server.payload())
    client.model.eval()
    own, _ = rows_and_signs(Shard(x, torch.zeros(len(x), dtype=torch.int64)), hyper)
    assert_close(client.predict(x), own @ server.payload()["head"].double().T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("device", DATA)
def test_the_sent_moments_of_a_device_differ_only_by_rounding(device):
    hyper = fedgram.Hyper()
    sent = halves(fedgram, hyper)[1][device].run(Ask("describe"))
    x, signs = rows_and_signs(DATA[device], hyper)
    G, B, n = sums(sent)
    assert n == len(x) and sent["factor"].shape == (W, W)
    levels = sent["scales.targets"].double() / 127
    assert bool(((B / n - x.T @ signs / n).abs() <= 1.0001 * levels).all())
    # Each number of a row of the factor changes by less than a level of the row.
    worst = sum(
        2 * W * float(scale) ** 2 / 127 + W * float(scale / 127) ** 2 for scale in sent["scales.factor"]
    )
    assert float((G / n - x.T @ x / n).norm()) < worst < 0.5
    assert float(G.trace()) / n == pytest.approx(W, rel=0.02)


def test_the_tail_keeps_the_trace_with_a_small_rank():
    hyper = fedgram.Hyper(rank=2)
    sent = halves(fedgram, hyper)[1]["device-0"].run(Ask("describe"))
    x, _ = rows_and_signs(DATA["device-0"], hyper)
    values = torch.linalg.eigvalsh(x.T @ x / len(x))
    assert float(sent["tail"]) == pytest.approx(float(values[:-2].sum()) / W, rel=1e-6)
    assert float(sums(sent)[0].trace()) / len(x) == pytest.approx(W, rel=0.02)


def test_the_order_and_the_round_of_answers_and_repeated_answers_change_no_bit():
    hyper, names = fedgram.Hyper(), tuple(DATA)
    once = played(fedgram, hyper, rounds=(names,))[0].payload()
    for rounds in ((names[::-1],), tuple((name,) for name in names[::-1]), (names, names[1:3], names)):
        assert same(played(fedgram, hyper, rounds=rounds)[0].payload(), once)


def test_a_class_that_no_device_holds_has_a_row_of_zeros_and_is_never_predicted():
    data = {name: Shard(part.x[part.y < 2], part.y[part.y < 2]) for name, part in DATA.items()}
    server, clients = played(fedgram, fedgram.Hyper(), data, (tuple(data),))
    head = server.payload()["head"]
    assert head.shape == (CLASSES, W) and not head[2].any() and head[:2].all()
    clients["device-0"].receive(server.payload())
    scores = clients["device-0"].predict(DATA["device-0"].x)
    assert (scores[:, 2] == -math.inf).all() and scores[:, :2].isfinite().all()
    assert server.monitor()["devices.2"] == 0.0 and server.monitor()["devices.1"] == 3.0


def test_a_class_with_too_few_stated_samples_is_not_held():
    assert fedgram.METHOD.needs_counts, "the coordinator learns the label distribution"
    reply = Reply("a", 40, {"samples": torch.tensor([31])})
    (kept,) = with_stated_counts([reply], [Member("a", 40, (31, 0, 9))], 10)
    assert kept.payload["labels"].tolist() == [0] and kept.payload["counts"].tolist() == [31]
    for least, labels in ((0, [0, 2]), (9, [0, 2]), (32, [])):
        (kept,) = with_stated_counts([reply], [Member("a", 40, (31, 0, 9))], least)
        assert kept.payload["labels"].tolist() == labels


def test_a_device_whose_examples_are_lowered_has_less_weight_in_all_sums():
    """The coordinator lowers the examples of a device that has far more than the others."""
    server, clients = halves(fedgram, fedgram.Hyper(least_samples=1))
    sent = clients["device-0"].run(Ask("describe"))
    whole, part = (rounded_moments.moments(Reply("device-0", n, sent)) for n in (24, 6))
    assert part.samples == 6.0 and torch.equal(part.gram, whole.gram / 4)
    assert torch.equal(part.products, whole.products / 4)


def test_more_than_20_devices_are_left_out_in_20_groups(monkeypatch):
    sent = halves(fedgram, fedgram.Hyper(least_samples=1))[1]["device-0"].run(Ask("describe"))
    replies, seen = [Reply(f"{i:02}", 24, sent) for i in range(45)], []

    def errors(others, own, penalties):
        seen.append(own.samples / 24)
        assert others.samples + own.samples == 45 * 24
        return [1.0] * len(penalties)

    monkeypatch.setattr(rounded_moments, "errors_of_penalties", errors)
    rounded_moments.chosen_penalty(replies, rounded_moments.total(replies))
    assert seen == [3.0] * 5 + [2.0] * 15


def test_a_single_device_gets_the_penalty_1_without_a_warning(caplog):
    server, clients = halves(fedgram, fedgram.Hyper(least_samples=1))
    (sent,) = play(server, {"device-0": clients["device-0"]}, 1)
    assert torch.equal(server.payload()["head"], plain(sent, 1.0).half()) and not caplog.text


def test_the_largest_penalty_of_the_grid_is_chosen_with_a_warning(caplog):
    generator = torch.Generator().manual_seed(0)
    noise = {f"device-{i}": torch.randint(0, 3, (24,), generator=generator) for i in range(2)}
    noise["device-1"] = 2 - noise["device-0"]  # The devices contradict each other.
    data = {name: Shard(DATA["device-0"].x, y) for name, y in noise.items()}
    played(fedgram, fedgram.Hyper(least_samples=1), data, (tuple(data),))
    assert (
        "round 1: leaving devices out chooses lam = 10000, the largest of those that are tried" in caplog.text
    )


@pytest.mark.parametrize(
    "name, value, problem",
    [
        ("scales.factor", 60.0, "factor and tail have a norm of"),
        ("tail", 9.0, "factor and tail have a norm of 8.36821, above 2.7"),
        ("scales.targets", 60.0, "targets has a row with a norm of"),
    ],
)
def test_an_answer_that_no_samples_can_give_is_not_used_and_the_round_continues(name, value, problem, caplog):
    server, clients = halves(fedgram, fedgram.Hyper(least_samples=1))
    sent = {device: snapshot(clients[device].run(Ask("describe"))) for device in ("device-0", "device-1")}
    server.begin(1, [Member(device, len(DATA[device].y), (6, 6, 6)) for device in sent])
    story = server.round()
    ask = next(story)
    sent["device-0"][name][:] = value
    assert ask.problem_with(sent["device-0"], 24) is None
    with pytest.raises(StopIteration):
        story.send([Reply(device, len(DATA[device].y), answer) for device, answer in sent.items()])
    assert [reply.device for reply in server.answers.replies()] == ["device-1"]
    assert f"the answer of device-0 to round 1 is not used: {problem}" in caplog.text
    assert server.payload()["head"].isfinite().all()


@pytest.mark.parametrize(
    "name, value, problem",
    [
        ("factor", 0, "factor has 0, below 1"),
        ("scales.factor", -1.0, "scales.factor has -1, below 0"),
        ("tail", float("nan"), "tail is not finite"),
        ("samples", 25, "samples add up to 25, of a device with 24 examples"),
    ],
)
def test_arrays_that_break_a_rule_of_the_task_are_refused(name, value, problem):
    server, clients = halves(fedgram, fedgram.Hyper(least_samples=1))
    sent = snapshot(clients["device-0"].run(Ask("describe")))
    sent[name][:] = value
    assert Ask("describe", {}, server.wants()).problem_with(sent, 24).message == problem


def test_an_honest_answer_with_raw_features_or_fewer_samples_than_numbers_is_used():
    generator = torch.Generator().manual_seed(3)
    few = Shard(torch.randn(5, 1, 8, 8, generator=generator), torch.tensor([0, 0, 0, 1, 1]))
    for features in ("normalised", "raw"):
        hyper = {"least_samples": 1, "features": features}
        chosen = Network("mlp", embedding_size=64)
        plan = Plan("fedgram", 3, 1, size=8, channels=1, network=chosen, hyper=hyper)
        server, client = plan.server_half(), plan.client_half(few, "a")
        play(server, {"a": client}, 1)
        (reply,) = server.answers.replies()
        assert reply.payload["factor"].shape == (24, 65) and server.payload()["head"].isfinite().all()


@pytest.mark.parametrize("rank, up", [(96, 54_810), (24, 17_586), (1000, 513 * 513 + 4 * 513 + 5_178)])
def test_the_cost_has_the_bytes_of_the_closed_form(rank, up):
    plan = Plan("fedgram", 10, 1, network=Network("mlp", embedding_size=512), hyper={"rank": rank})
    cost = plan.variant.cost(Sizes(plan.model(), held=10))
    assert sum(cost.bytes_up.values()) == up and cost.bytes_last == {"head": 10_260} and not cost.down


@pytest.mark.parametrize(
    "settings, problem",
    [
        (
            {"bits": 4},
            "bits is 4, it must be 8, because with fewer bits, leaving devices out chooses penalties",
        ),
        ({"rank": 0}, "rank is 0, it must be at least 1"),
        ({"lam": 0.0}, "lam is 0.0, it must be above 0"),
        ({"form": "rows"}, "form is 'rows', it must be one of factor, gram"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(settings, problem):
    with pytest.raises(ValueError) as error:
        fedgram.Hyper(**settings)
    assert str(error.value).startswith(problem)


# The whole Gram matrix

GRAM = {"form": "gram"}


def whole_sums(device, hyper):
    """Return G, B and n of the samples that count on a device."""
    x, signs = rows_and_signs(DATA[device], hyper)
    return x.T @ x, x.T @ signs, len(x)


@pytest.mark.parametrize("settings", [{}, {"lam": 40.0, "features": "raw", "least_samples": 1}])
def test_the_head_from_whole_gram_matrices_equals_that_of_a_plain_loop(settings):
    hyper = fedgram.Hyper(**GRAM, **settings)
    server, _ = played(fedgram, hyper)
    wanted = plain_of([whole_sums(name, hyper) for name in sorted(DATA)], hyper.lam)
    assert torch.equal(server.payload()["head"], wanted.half())
    counts = {name: reply.payload["counts"].tolist() for name, reply in by_device(server).items()}
    assert counts == {
        name: [n for n in DATA[name].y.bincount().tolist() if n >= hyper.least_samples] for name in DATA
    }


def by_device(server):
    return {reply.device: reply for reply in server.answers.replies()}


def released(devices, deviation, seed=1):
    """Return a server half of a run with noise, and the sums with noise of these devices."""
    hyper = fedgram.Hyper(**GRAM, least_samples=1)
    server, clients = halves(fedgram, hyper)
    server.noise = SumNoise(math.sqrt(D), deviation)
    sums, generator = fedgram.sums(hyper, network(), math.sqrt(D)), torch.Generator().manual_seed(seed)
    vectors = {}
    for name in devices:
        clients[name].sums = sums
        (vector,) = clients[name].run(Ask("describe")).values()
        vectors[name] = vector + deviation * torch.randn(
            len(vector), generator=generator, dtype=torch.float64
        )
    return server, sums, vectors


def head_of(server, sums, vectors, sizes):
    server.begin(1, [Member(name, sizes[name]) for name in vectors])
    story = server.round()
    ask, replies = next(story), []
    for name, vector in vectors.items():
        payload = sums.payload(vector, sizes[name])
        assert ask.problem_with(payload, sizes[name]) is None
        replies.append(Reply(name, sizes[name], payload))
    with pytest.raises(StopIteration):
        story.send(replies)
    return server.payload()["head"]


SIZES = {name: len(part.y) for name, part in DATA.items()}


def test_sums_without_noise_give_the_arrays_of_the_samples():
    hyper = fedgram.Hyper(**GRAM, least_samples=1)
    _, sums, vectors = released(DATA, 0.0)
    clients = halves(fedgram, hyper)[1]
    for name, vector in vectors.items():
        sent = clients[name].run(Ask("describe"))
        for key, value in sums.payload(vector, SIZES[name]).items():
            assert_close(value, sent[key], rtol=1e-9, atol=1e-9)


def test_a_class_with_too_few_samples_in_a_sum_is_not_held():
    _, sums, vectors = released(("device-0", "device-3"), 0.0)
    for name, vector in vectors.items():
        (kept,) = whole_moments.with_sent_counts(
            [Reply(name, SIZES[name], sums.payload(vector, SIZES[name]))], 7
        )
        held = {c: n for c, n in enumerate(DATA[name].y.bincount(minlength=CLASSES).tolist()) if n >= 7}
        labels, counts = (kept.payload[key].tolist() for key in ("labels", "counts"))
        assert dict(zip(labels, counts, strict=True)) == held


def test_the_sum_of_all_devices_gives_the_same_head_as_their_single_sums(monkeypatch):
    """So a masked sum could replace the sums of the devices, with the same noise in it."""
    monkeypatch.setattr(fedgram, "noise_edge", lambda *_: 3.0)  # As if the noise were the same in both.
    server, sums, vectors = released(DATA, 2.0)
    single = head_of(server, sums, vectors, SIZES)
    whole, sums, _ = released((), 2.0)
    one = head_of(whole, sums, {"all": sum(vectors.values())}, {"all": sum(SIZES.values())})
    assert single.any() and assert_close(single.double(), one.double(), rtol=2e-3, atol=2e-3) is None


def test_the_head_with_noise_uses_the_positive_part_of_the_sum():
    server, sums, vectors = released(DATA, 2.0)
    head = head_of(server, sums, vectors, SIZES).double()
    G = sum(one.gram for one in map(whole_moments.moments, server.answers.replies()))
    B = sum(one.products for one in map(whole_moments.moments, server.answers.replies()))
    values, directions = torch.linalg.eigh(G)
    edge = math.sqrt(D) * 2.0 * math.sqrt(2 * W * len(DATA))
    assert float(values[0]) < 0
    G = sum(max(0.0, float(v)) * torch.outer(d, d) for v, d in zip(values, directions.T, strict=True))
    wanted = torch.linalg.solve(G + edge / 2 * torch.eye(W, dtype=torch.float64), B).T
    assert_close(head, wanted.half().double(), rtol=2e-3, atol=1e-4)


def test_a_penalty_that_is_larger_than_that_of_the_noise_is_used():
    heads = []
    for lam in (None, 1e4):
        server, sums, vectors = released(DATA, 2.0)
        server.hyper = fedgram.Hyper(**GRAM, least_samples=1, lam=lam)
        heads.append(float(head_of(server, sums, vectors, SIZES).double().norm()))
    assert heads[1] < heads[0] / 2


def test_whole_gram_matrices_that_no_samples_can_give_are_not_used(caplog):
    hyper = fedgram.Hyper(**GRAM, least_samples=1)
    clients = halves(fedgram, hyper)[1]
    for name, value, problem in (
        ("gram", 9.0, "gram has a trace of"),
        ("targets", -3.0, "targets has 3, above 0.39"),
    ):
        server = halves(fedgram, hyper)[0]
        sent = snapshot(clients["device-0"].run(Ask("describe")))
        sent[name][:] = value
        server.begin(1, [Member("device-0", 24)])
        story = server.round()
        next(story)
        with pytest.raises(StopIteration):
            story.send([Reply("device-0", 24, sent)])
        assert not server.answers.replies() and problem in caplog.text
