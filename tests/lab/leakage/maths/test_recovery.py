import math

import numpy as np
import pytest

from protofleet.lab.leakage.maths.intervals import STRICT
from protofleet.lab.leakage.maths.recovery import (
    clustered,
    clustered_r2,
    clustered_ratio,
    cosine,
    fitted_ridge,
    nearest,
    psnr,
    r2,
    relative_error,
    ridges,
    total_variation,
)

RNG = np.random.default_rng(0)
TRUE = RNG.normal(size=(60, 8))
CLASSES = np.arange(60) % 6


def test_r2_is_1_for_the_true_rows_0_for_their_mean_and_negative_for_shuffled_pairs():
    assert r2(TRUE, TRUE) == 1
    assert r2(np.tile(TRUE.mean(0), (60, 1)), TRUE) == pytest.approx(0)
    assert r2(TRUE[RNG.permutation(60)], TRUE) < 0
    assert clustered_r2(TRUE, TRUE, CLASSES).value == 1
    noisy = TRUE + 0.3 * RNG.normal(size=TRUE.shape)
    found = clustered_r2(noisy, TRUE, CLASSES)
    assert found.value == pytest.approx(r2(noisy, TRUE)) and found.low < found.value < found.high


def test_r2_of_equal_rows_is_not_measured():
    assert math.isnan(r2(np.ones((3, 2)), np.ones((3, 2))))


def test_cosine_and_relative_error_agree_with_their_definitions():
    found = TRUE + RNG.normal(size=TRUE.shape)
    each = [a @ b / math.sqrt(a @ a * (b @ b)) for a, b in zip(found, TRUE, strict=True)]
    assert cosine(found, TRUE) == pytest.approx(np.mean(each))
    assert relative_error(found, TRUE) == pytest.approx(
        math.sqrt(((found - TRUE) ** 2).sum() / (TRUE**2).sum())
    )
    assert relative_error(TRUE, TRUE) == 0 and cosine(3 * TRUE, TRUE) == pytest.approx(1)


def test_the_nearest_candidate_is_found():
    candidates = RNG.normal(size=(100, 8))
    rows = candidates[[3, 50, 99]] + 0.001
    assert nearest(rows, candidates).tolist() == [3, 50, 99]


def test_total_variation_is_0_for_the_same_shares_and_1_for_disjoint_ones():
    assert total_variation(np.array([1.0, 3.0]), np.array([10.0, 30.0])) == 0
    assert total_variation(np.array([1.0, 0.0]), np.array([0.0, 5.0])) == 1
    assert total_variation(np.array([1.0, 1.0]), np.array([3.0, 1.0])) == pytest.approx(0.25)


def test_the_psnr_of_an_error_of_a_tenth_of_the_range_is_20_db():
    assert psnr(TRUE + 0.2, TRUE) == pytest.approx(20)
    assert (psnr(TRUE, TRUE) > 200).all()


def test_a_ridge_map_finds_a_linear_map_and_chooses_a_large_penalty_for_noise():
    rows = RNG.normal(size=(300, 10))
    targets = rows @ RNG.normal(size=(10, 4)) + 5
    assert np.abs(fitted_ridge(rows, targets)(rows) - targets).max() < 0.05
    noise = RNG.normal(size=(300, 4))
    unseen = np.square(fitted_ridge(rows, noise)(RNG.normal(size=(300, 10))) - noise.mean(0)).mean()
    fitted = np.square(ridges(rows, noise, [1e-9])[0](RNG.normal(size=(300, 10))) - noise.mean(0)).mean()
    assert unseen < fitted, "the test would not notice a penalty that ignores held-out rows"


def test_a_ridge_map_solves_the_penalised_least_squares():
    rows, targets = RNG.normal(size=(30, 5)), RNG.normal(size=(30, 2))
    x, t = rows - rows.mean(0), targets - targets.mean(0)
    weights = np.linalg.solve(x.T @ x + 2.0 * np.eye(5), x.T @ t)
    assert np.allclose(ridges(rows, targets, [2.0])[0].matrix[:-1], weights)


def test_an_interval_over_clusters_contains_the_mean_if_rows_of_a_cluster_are_similar():
    held = wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        values = np.repeat(rng.normal(size=10), 20) + 0.1 * rng.normal(size=200)
        held += clustered(values, np.repeat(np.arange(10), 20), level=STRICT).contains(0)
        wrong += clustered(values, np.arange(200), level=STRICT).contains(0)
    assert held >= 38
    assert wrong < 30, "the test would not notice an interval over rows"


def test_a_ratio_of_sums_is_not_a_mean_of_ratios():
    above, below = np.array([1.0, 1.0, 8.0]), np.array([1.0, 1.0, 2.0])
    assert clustered_ratio(above, below, np.arange(3)).value == 2.5
