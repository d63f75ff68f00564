"""Tests of sums over samples with noise, and of the means, counts and products that are made from them."""

import pytest
import torch

from protofleet.methods.contract.private_sums import SumNoise
from protofleet.methods.maths.grams import gram
from protofleet.methods.maths.means import class_means
from protofleet.methods.parts.class_sums import (
    ClassSums,
    NoisySums,
    noise_edge,
    problem_with_noisy_products,
    solvable,
)

CLASSES, WIDTH = 3, 5
NOISE = SumNoise(clip=2.0, deviation=0.5)


def data(count=60, length=1.0):
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
    return length * z / z.norm(dim=1, keepdim=True), torch.arange(count) % CLASSES


@pytest.mark.parametrize("products", [False, True])
def test_sums_without_noise_are_the_sums_of_the_samples(products):
    z, y = data()
    sums = ClassSums(2.0, CLASSES, WIDTH, products)
    found = sums.split(sums.vector(z, y))
    means, counts = class_means(z, y, CLASSES)
    torch.testing.assert_close(found.sums, means * counts.unsqueeze(1))
    torch.testing.assert_close(found.counts, counts.double())
    if products:
        torch.testing.assert_close(found.products, gram(z))


def test_features_longer_than_the_clip_are_shortened_to_the_clip():
    z, y = data(length=8.0)
    sums = ClassSums(2.0, CLASSES, WIDTH, products=False)
    torch.testing.assert_close(sums.vector(z, y), sums.vector(z / 4, y))
    assert not torch.allclose(sums.vector(z / 4, y), sums.vector(z / 5, y))


def test_means_equal_those_of_the_samples_and_rare_classes_are_left_out():
    z, y = data(9)
    y[:] = torch.tensor([0] * 6 + [1] * 3)
    sums = ClassSums(2.0, CLASSES, WIDTH, products=False)
    means, counts = sums.split(sums.vector(z, y)).means(least=4, samples=9, longest=2.0)
    assert counts.tolist() == [6, 0, 0]
    torch.testing.assert_close(means[0], z[:6].mean(dim=0))
    assert not means[1:].any()


def test_counts_with_noise_are_between_zero_and_the_stated_number_of_samples():
    noisy = NoisySums(torch.ones(CLASSES, WIDTH).double(), torch.tensor([-4.2, 90.0, 30.0]).double(), None)
    _, counts = noisy.means(least=1, samples=100, longest=1.0)
    assert (counts >= 0).all()
    assert int(counts.sum()) <= 100
    _, none = noisy.means(least=1, samples=0, longest=1.0)
    assert none.tolist() == [0, 0, 0]


def test_a_mean_with_noise_is_at_most_as_long_as_the_longest_feature():
    sums = torch.full((CLASSES, WIDTH), 1000.0, dtype=torch.float64)
    means, _ = NoisySums(sums, torch.full((CLASSES,), 10.0).double(), None).means(1, 30, 2.0)
    torch.testing.assert_close(means.norm(dim=1), torch.full((CLASSES,), 2.0).double())


def noise_alone(width, deviation, devices):
    """Return the products of sums over no samples, with the noise of so many devices."""
    generator, sums = torch.Generator().manual_seed(5), ClassSums(2.0, 1, width, products=True)
    rows = torch.randn(devices, sums.numbers, generator=generator, dtype=torch.float64) * deviation
    return sum(sums.split(row).products for row in rows)


def test_noise_edge_is_the_largest_eigenvalue_of_noise_without_samples():
    for devices in (1, 4):
        values = torch.linalg.eigvalsh(noise_alone(200, 0.5, devices)) / noise_edge(NOISE, 200, devices)
        assert float(values[-1]) == pytest.approx(1, abs=0.1)
        assert float(values[0]) == pytest.approx(-1, abs=0.1)


def test_solvable_adds_half_of_the_edge_and_removes_negative_eigenvalues():
    generator = torch.Generator().manual_seed(6)
    directions = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))[0]
    values = torch.tensor([-7.0, -0.1, 0.0, 20.0]).double()
    found = solvable(directions @ torch.diag(values) @ directions.T, 8.0)
    wanted = torch.tensor([4.0, 4.0, 4.0, 24.0]).double()
    torch.testing.assert_close(found, directions @ torch.diag(wanted) @ directions.T)


def test_products_much_larger_than_the_noise_are_refused():
    found = noise_alone(WIDTH, 0.5, 1) / 30
    assert problem_with_noisy_products(found, NOISE, 30, WIDTH) == ""
    assert problem_with_noisy_products(found * 100, NOISE, 30, WIDTH).startswith("gram has a norm of ")
