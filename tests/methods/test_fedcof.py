"""Tests of FedCOF against a plain loop, least squares, and the parts of classes that devices send."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protofleet.methods import fedcof, fedncm
from protofleet.methods.contract.base import Reply
from protofleet.methods.maths.second_moments import moment_from_means
from protofleet.methods.parts.local import embed
from tests.methods.plain import DATA, PRESENT, WITHOUT_2, played
from tests.methods.test_fedncm import features
from tests.methods.tiny import CLASSES, SHARDS, Shard, clients_of, normal, play, same, server_of, tiny


def device_means(name, data, hyper):
    """Return (class, count, mean) of each class of a device that has enough samples."""
    z, y = features(data[name].x, hyper), data[name].y.numpy()
    held = [c for c in sorted(set(y.tolist())) if (y == c).sum() >= hyper.least_samples]
    return [(c, int((y == c).sum()), z[y == c].mean(0)) for c in held]


def plain(hyper, data, rounds=PRESENT):
    """Return the row of each known class, written as the paper's sums over classes and devices."""
    names = sorted({name for present in rounds for name in present})
    sent = [row for name in names for row in device_means(name, data, hyper)]
    known = sorted({c for c, _, _ in sent})
    n = {c: sum(k for label, k, _ in sent if label == c) for c in known}
    mu = {c: sum(k * m for label, k, m in sent if label == c) / n[c] for c in known}
    total, size = sum(n.values()), len(sent[0][2])
    mean = sum(n[c] * mu[c] for c in known) / total
    G = total * np.outer(mean, mean)
    for c in known:
        own = [(k, m) for label, k, m in sent if label == c]
        if len(own) > 1:
            scatter = sum(k * np.outer(m - mu[c], m - mu[c]) for k, m in own) / (len(own) - 1)
            G = G + (n[c] - 1) * scatter
        if hyper.scatter == "total":
            G = G + n[c] * np.outer(mu[c] - mean, mu[c] - mean)
    unit = np.trace(G) / (size * (total - len(known))) if hyper.penalty == "relative" else 1.0
    G = G + sum((n[c] - 1) * hyper.gamma * unit for c in known) * np.eye(size)
    rows = {c: np.linalg.inv(G) @ (n[c] * mu[c]) for c in known}
    return {c: row / np.linalg.norm(row) for c, row in rows.items()}


@pytest.mark.parametrize("data", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize(
    "hyper",
    [
        fedcof.Hyper(),
        fedcof.Hyper(penalty="absolute", gamma=0.1, least_samples=1),
        fedcof.Hyper(scatter="total", features="raw", gamma=0.01),
    ],
    ids=["default", "the paper's penalty", "total"],
)
def test_four_rounds_equal_those_of_a_plain_loop(data, hyper):
    server, _ = played(fedcof, hyper, data)
    rows, head = plain(hyper, data), server.payload()
    assert head["labels"].tolist() == list(rows)
    np.testing.assert_allclose(head["head"].numpy(), np.stack([*rows.values()]), rtol=1e-9, atol=1e-10)


def answers_of_one_sample_each(hyper):
    x, y, wide = 3 * normal(60, 4, seed=2), torch.arange(60) % CLASSES, tiny().double()
    rows = {f"d{i:02}": Shard(x[i : i + 1], y[i : i + 1]) for i in range(len(y))}
    clients = {name: fedcof.METHOD.Client(wide, row, hyper, 7, name) for name, row in rows.items()}
    return embed(wide, x).numpy(), y, clients


def test_the_total_scatter_with_one_sample_per_device_is_least_squares():
    hyper = fedcof.Hyper(scatter="total", gamma=0.0, features="raw", least_samples=1)
    z, y, clients = answers_of_one_sample_each(hyper)
    server = fedcof.METHOD.Server(tiny().double(), hyper, 7)
    play(server, clients, 1)
    wanted = np.linalg.lstsq(z, np.eye(CLASSES)[y])[0].T
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(server.payload()["head"].numpy(), wanted, rtol=1e-9, atol=1e-9)


def test_the_means_of_many_parts_give_the_covariance_of_the_samples():
    g = torch.Generator().manual_seed(5)
    mix = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.5, 0.2], [0.0, 0.0, 2.0]]).double()
    x = torch.randn(40_000, 3, generator=g, dtype=torch.float64) @ mix
    means = x.reshape(4_000, 10, 3).mean(1)
    labels, counts = torch.zeros(4_000, dtype=torch.int64), torch.full((4_000,), 10)
    found = moment_from_means(means, labels, counts, 1, between=False) / len(x)
    torch.testing.assert_close(found, mix.T @ mix, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(("least", "parts"), [(1, 4), (5, 1), (3, 2)])
def test_each_part_of_a_class_has_enough_samples_and_all_parts_have_the_class_mean(least, parts):
    hyper = fedcof.Hyper(means_per_class=4, least_samples=least)
    client = clients_of(fedcof.METHOD, hyper)["device-0"]  # It has 8 samples of each class.
    client.begin(1)
    sent = client.run(next(server_of(fedcof.METHOD, hyper).round()))
    assert sent["labels"].bincount().tolist() == [parts] * 3 and int(sent["counts"].min()) >= least
    whole = clients_of(fedcof.METHOD, replace(hyper, means_per_class=1))["device-0"]
    means = whole.run(next(server_of(fedcof.METHOD, hyper).round()))["prototypes"]
    for c in range(CLASSES):
        own = sent["labels"] == c
        share = sent["counts"][own] / sent["counts"][own].sum()
        torch.testing.assert_close(share @ sent["prototypes"][own], means[c])
    client.begin(2)
    assert same(sent, client.run(next(server_of(fedcof.METHOD, hyper).round())))


def test_more_means_of_a_class_than_the_plan_allows_are_refused():
    hyper = fedcof.Hyper(means_per_class=2, least_samples=1)
    ask = next(server_of(fedcof.METHOD, hyper).round())
    rows = {"prototypes": torch.zeros(7, 6), "labels": torch.arange(7) % 3, "counts": torch.ones(7).long()}
    assert ask.problem_with({k: v[:6] for k, v in rows.items()}, 8) is None
    assert ask.problem_with(rows, 8).message == "prototypes is (7, 6), over the limit of 6 for held"


def test_one_mean_per_class_and_a_large_gamma_give_the_head_of_fedncm():
    hyper = fedcof.Hyper(gamma=1e6)
    server, clients = server_of(fedcof.METHOD, hyper), clients_of(fedcof.METHOD, hyper)
    other = server_of(fedncm.METHOD, fedncm.Hyper())
    play(server, {"device-0": clients["device-0"]}, 1)
    others = clients_of(fedncm.METHOD, fedncm.Hyper(), {"device-0": SHARDS["device-0"]})
    play(other, others, 1)
    torch.testing.assert_close(server.payload()["head"], other.payload()["head"], rtol=0, atol=1e-4)


def test_features_of_zeros_give_a_head_of_zeros():
    server = server_of(fedcof.METHOD, fedcof.Hyper())
    rows = {"prototypes": torch.zeros(2, 6), "labels": torch.tensor([0, 2]), "counts": torch.tensor([5, 6])}
    assert not server.solve([Reply("a", 11, rows)])["head"].any()
