"""Sums over samples with noise, and what an update is made of."""

import pytest
import torch

from protofleet.methods.maths.grams import gram
from protofleet.methods.maths.means import class_means
from protofleet.methods.parts.class_sums import ClassSums, NoisySums

CLASSES, WIDTH = 3, 5


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


def test_features_longer_than_the_clip_are_shortened_and_others_are_not():
    z, y = data(length=8.0)
    sums = ClassSums(2.0, CLASSES, WIDTH, products=False)
    torch.testing.assert_close(sums.vector(z, y), sums.vector(z / 4, y))
    assert not torch.allclose(sums.vector(z / 4, y), sums.vector(z / 5, y))


def test_means_are_those_of_the_samples_and_rare_classes_are_left_out():
    z, y = data(9)
    y[:] = torch.tensor([0] * 6 + [1] * 3)
    sums = ClassSums(2.0, CLASSES, WIDTH, products=False)
    means, counts = sums.split(sums.vector(z, y)).means(least=4, samples=9, longest=2.0)
    assert counts.tolist() == [6, 0, 0]
    torch.testing.assert_close(means[0], z[:6].mean(dim=0))
    assert not means[1:].any()


def test_counts_with_noise_are_never_negative_and_never_more_than_the_stated_samples():
    noisy = NoisySums(torch.ones(CLASSES, WIDTH).double(), torch.tensor([-4.2, 90.0, 30.0]).double(), None)
    _, counts = noisy.means(least=1, samples=100, longest=1.0)
    assert (counts >= 0).all()
    assert int(counts.sum()) <= 100
    _, none = noisy.means(least=1, samples=0, longest=1.0)
    assert none.tolist() == [0, 0, 0]


def test_a_mean_with_noise_is_not_longer_than_a_feature_can_be():
    sums = torch.full((CLASSES, WIDTH), 1000.0, dtype=torch.float64)
    means, _ = NoisySums(sums, torch.full((CLASSES,), 10.0).double(), None).means(1, 30, 2.0)
    torch.testing.assert_close(means.norm(dim=1), torch.full((CLASSES,), 2.0).double())


def test_products_with_noise_have_no_negative_eigenvalue_and_a_limited_trace():
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) * 50
    noisy = NoisySums(
        torch.zeros(CLASSES, WIDTH).double(), torch.full((CLASSES,), 10.0).double(), noise + noise.T
    )
    means, counts = noisy.means(1, 30, 1.0)
    found = noisy.within(means, counts, trace=2.0)
    assert float(torch.linalg.eigvalsh(found)[0]) >= -1e-12
    assert float(found.trace()) <= 2.0 + 1e-9


def test_products_without_noise_are_those_about_the_class_means():
    z, y = data()
    sums = ClassSums(1.0, CLASSES, WIDTH, products=True)
    noisy = sums.split(sums.vector(z, y))
    means, counts = noisy.means(1, 60, 1.0)
    torch.testing.assert_close(noisy.within(means, counts, 10.0), gram(z - means[y]) / 60)
