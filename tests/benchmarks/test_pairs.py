"""Tests of ratios of pairs: their median, their interval, and the verdict on them."""

import itertools
import random
import statistics
from math import inf

import pytest

from benchmarks.harness.pairs import COVERAGE, Spread, Verdict, apart, ratio, ratios, spread, verdict


def of(values):
    return spread(list(values))


@pytest.mark.parametrize("n", [5, 9, 15, 30])
def test_the_interval_contains_the_true_median_as_often_as_its_coverage(n):
    draw, held, times = random.Random(n), 0, 2000
    for _ in range(times):
        found = of(draw.lognormvariate(0, 1) for _ in range(n))
        held += found.low <= 1.0 <= found.high
    assert held / times > COVERAGE - 0.03


@pytest.mark.parametrize("n", range(1, 12))
def test_the_interval_is_as_narrow_as_the_coverage_allows(n):
    """The next narrower interval would contain the median too rarely: the test counts all throws of n coins."""
    found = of(range(n))
    narrower = [sum(side) for side in itertools.product((0, 1), repeat=n)]
    skipped = int(found.low) + 1
    holds = sum(skipped < heads < n - skipped for heads in narrower) / 2**n
    assert n - 2 * skipped < 1 or holds < COVERAGE


def test_median_and_quartiles_are_those_of_the_values():
    found = of([5, 1, 4, 2, 3])
    assert (found.median, found.first, found.third) == (3, 2, 4)
    assert (found.low, found.high) == (1, 5), "of five values, only the extremes contain it in 9 of 10 cases"


def test_the_spread_of_one_value_is_this_value():
    assert of([2.0]) == Spread(1, 2.0, 2.0, 2.0, 2.0, 2.0)


def test_an_empty_series_has_no_median():
    with pytest.raises(ValueError, match="a median needs at least one value"):
        of([])


def test_noise_that_affects_both_values_of_a_pair_does_not_change_their_ratio():
    noise = [random.Random(1).uniform(1, 20) for _ in range(9)]
    found = of(ratios([2.0 * n for n in noise], [4.0 * n for n in noise]))
    assert found.low == found.high == statistics.median([0.5])


def test_the_ratio_of_two_zeros_is_1_and_of_a_value_to_zero_is_infinite():
    assert ratio(0, 0) == 1.0
    assert ratio(3, 0) == inf
    assert verdict(of([inf] * 5), "lower") is Verdict.WORSE


@pytest.mark.parametrize(
    ("values", "better", "said"),
    [
        ([1.2, 1.3, 1.1, 1.25, 1.4], "lower", Verdict.WORSE),
        ([1.2, 1.3, 1.1, 1.25, 1.4], "higher", Verdict.BETTER),
        ([0.5, 0.6, 0.7, 0.5, 0.6], "lower", Verdict.BETTER),
        ([0.5, 0.6, 0.7, 0.5, 0.6], "higher", Verdict.WORSE),
        ([0.9, 1.3, 1.1, 1.25, 1.4], "lower", Verdict.SAME),
        ([1.2, 1.3, 1.1], "lower", Verdict.UNKNOWN),
        ([1.0, 1.0, 1.0, 1.0], "lower", Verdict.SAME),
    ],
)
def test_a_difference_is_reported_only_if_the_interval_does_not_contain_1(values, better, said):
    assert verdict(of(values), better) is said


@pytest.mark.parametrize(
    ("these", "others", "said"),
    [
        ([5, 6, 5, 6], [1, 2, 1, 2], Verdict.WORSE),
        ([1, 2, 1, 2], [5, 6, 5, 6], Verdict.BETTER),
        ([1, 5, 1, 5], [4, 6, 4, 6], Verdict.SAME),
        ([5, 6, 5], [1, 2, 1, 2], Verdict.UNKNOWN),
    ],
)
def test_unpaired_series_differ_only_if_their_intervals_do_not_overlap(these, others, said):
    assert apart(of(these), of(others), "lower") is said
