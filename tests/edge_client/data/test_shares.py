"""Clients of one domain divide its samples without a message: each sample has one client, and all clients agree."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.sampling import balanced, stratified, without
from protofleet.edge_client.data.shares import MIN_SAMPLES_IF_SKEWED, SPLITS
from protofleet.edge_client.data.stable_random import StableRandom

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)
QUICK = settings(max_examples=60, deadline=None)


def shares_of(split, train, test, parts, beta=1.0, seed=0):
    return SPLITS[split].partition(train, test, parts, beta, StableRandom(seed))


@pytest.mark.parametrize("split", SPLITS)
@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.2, 50))
@QUICK
def test_shares_are_disjoint_and_cover_all_training_samples(split, seed, parts, beta):
    train, test = StableRandom(seed, "train").below(4, 300), StableRandom(seed, "test").below(4, 90)
    shares = shares_of(split, train, test, parts, beta, seed)
    assert len(shares) == parts
    assert sorted(np.concatenate([mine for mine, _ in shares]).tolist()) == list(range(300))


@given(st.integers(0, 1000), st.integers(1, 6))
@QUICK
def test_only_dirichlet_divides_the_test_samples_too(seed, parts):
    train, test = StableRandom(seed, "train").below(4, 300), StableRandom(seed, "test").below(4, 90)
    skewed = np.concatenate([tested for _, tested in shares_of("dirichlet", train, test, parts)])
    assert sorted(skewed.tolist()) == list(range(90))
    for split in ("domain", "iid"):
        assert all(
            sorted(tested.tolist()) == list(range(90)) for _, tested in shares_of(split, train, test, parts)
        )


@pytest.mark.parametrize("split", SPLITS)
def test_the_seed_determines_the_shares(split):
    train, test = np.arange(300) % 5, np.arange(100) % 5
    first, again, other = (shares_of(split, train, test, 4, seed=seed) for seed in (1, 1, 2))
    assert all((a[0] == b[0]).all() and (a[1] == b[1]).all() for a, b in zip(first, again, strict=True))
    assert any(a[0].tolist() != b[0].tolist() for a, b in zip(first, other, strict=True))


@given(LABELS, st.integers(1, 6))
@QUICK
def test_domain_shares_have_equal_class_counts_within_one_sample(labels, parts):
    counts = [
        np.bincount(labels[mine], minlength=5) for mine, _ in shares_of("domain", labels, labels, parts)
    ]
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(np.sum(counts, axis=1)) <= 1


@given(LABELS, st.integers(1, 6))
@QUICK
def test_iid_shares_have_equal_sizes_within_one_sample(labels, parts):
    assert np.ptp([len(mine) for mine, _ in shares_of("iid", labels, labels, parts)]) <= 1


def skew(beta):
    """Return the distance of the clients' mixes of classes from the mix of all, averaged over clients and seeds."""
    labels = np.arange(2000) % 10
    found = []
    for seed in range(5):
        for mine, _ in shares_of("dirichlet", labels, labels, 5, beta, seed):
            found.append(np.abs(np.bincount(labels[mine], minlength=10) / len(mine) - 0.1).sum())
    return np.mean(found)


def test_a_smaller_beta_gives_more_skewed_shares():
    assert skew(0.1) > skew(1.0) + 0.2 > skew(100.0) + 0.4
    assert skew(1000.0) < 0.1


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution():
    labels, parts, beta = np.zeros(1000, np.int64), 4, 2.0
    shares = [
        len(mine) / 1000
        for seed in range(150)
        for mine, _ in shares_of("dirichlet", labels, labels, parts, beta, seed)
    ]
    assert np.mean(shares) == pytest.approx(1 / parts)
    # The mean for one component of Dirichlet(beta, ..., beta).
    variance = (1 / parts) * (1 - 1 / parts) / (parts * beta + 1)
    assert np.var(shares) == pytest.approx(variance, rel=0.2)


def test_a_dirichlet_test_share_has_the_class_counts_of_the_training_share():
    labels = np.arange(2000) % 10
    for mine, tested in shares_of("dirichlet", labels, labels, 5, 0.1):
        learnt, asked = (np.bincount(labels[chosen], minlength=10) for chosen in (mine, tested))
        assert np.abs(learnt - asked).max() <= 1


def test_each_skewed_share_has_a_minimum_number_of_samples():
    labels = np.arange(600) % 10
    for seed in range(20):
        shares = shares_of("dirichlet", labels, labels[:60], 8, 0.2, seed)
        assert min(len(mine) for mine, _ in shares) >= MIN_SAMPLES_IF_SKEWED
        assert min(len(tested) for _, tested in shares) >= 1


@pytest.mark.parametrize(("n", "parts", "beta"), [(20, 5, 1.0), (400, 30, 0.01)])
def test_the_error_for_an_impossible_skew_states_the_numbers_and_a_fix(n, parts, beta):
    with pytest.raises(
        DataError, match=rf"{n} training.*{parts} clients.*beta {beta}.*larger beta, fewer parts"
    ):
        shares_of("dirichlet", np.arange(n) % 4, np.arange(n) % 4, parts, beta)


def fair(counts, k):
    """Give out `k` samples one at a time and return how many each class got, sorted.

    Each sample goes to the class that got the fewest until then, of the classes that have samples left.
    """
    given = [0] * len(counts)
    for _ in range(min(k, sum(counts))):
        hungry = [c for c in range(len(counts)) if given[c] < counts[c]]
        given[min(hungry, key=lambda c: given[c])] += 1
    return sorted(given)


@given(LABELS, st.integers(0, 90), st.integers())
@QUICK
def test_balanced_picks_are_as_even_as_the_classes_allow(labels, k, seed):
    chosen = balanced(labels, k, StableRandom(seed))
    assert len(set(chosen.tolist())) == len(chosen) == min(k, len(labels))
    even, counts = (np.bincount(some, minlength=5).tolist() for some in (labels[chosen], labels))
    assert sorted(even) == fair(counts, k)


def one_share_for_all(given, counts):
    """Tell whether one fraction of each class, rounded to the nearest (halves either way), gives `given`."""
    # |given - fraction * count| <= 1/2 holds for all classes if their ranges of such fractions have one in common.
    lowest = max(Fraction(2 * g - 1, 2 * n) for g, n in zip(given, counts))
    return lowest <= min(Fraction(2 * g + 1, 2 * n) for g, n in zip(given, counts))


@given(LABELS, st.floats(0, 1), st.integers())
@example(np.array([0, 1, 1, 3, 1, 1, 2, 1]), 3 / 8, 1)  # 3 of class 1, whose part of 3 is 1.875
@QUICK
def test_stratified_picks_take_the_same_fraction_of_each_class(labels, fraction, seed):
    k = round(fraction * len(labels))
    chosen = stratified(labels, k, StableRandom(seed))
    assert len(set(chosen.tolist())) == len(chosen) == k
    classes, counts = np.unique(labels, return_counts=True)
    given = [int((labels[chosen] == c).sum()) for c in classes]
    assert one_share_for_all(given, counts.tolist())


@given(LABELS, st.integers(0, 80), st.integers(0, 80), st.integers())
@QUICK
def test_a_longer_stratified_pick_begins_with_the_shorter_one(labels, few, more, seed):
    few, more = sorted((few, more))
    picks = stratified(labels, more, StableRandom(seed)).tolist()
    assert stratified(labels, few, StableRandom(seed)).tolist() == picks[:few]


def test_without_returns_the_indexes_that_were_not_chosen():
    assert without(6, np.array([4, 1])).tolist() == [0, 2, 3, 5]
    assert math.isclose(len(without(3, np.array([], np.int64))), 3)
