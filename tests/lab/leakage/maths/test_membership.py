import math
from dataclasses import replace

import numpy as np
import pytest

from protofleet.lab.leakage.maths.intervals import LEVEL, STRICT, Figure, clopper_pearson, student
from protofleet.lab.leakage.maths.membership import (
    DRAWS,
    LEAST_OTHERS,
    RATE,
    Membership,
    Scores,
    auc,
    clustered_auc,
    every_second,
    membership,
    rates,
)

CLASSES = 10


def scores(seed, members=200, others=1_000, lift=0.0, spread=0.0, shift=0.0, scale=1.0, device="a"):
    """Return scores whose classes differ by a random amount, with members `lift` above the non-members.

    `spread` is the deviation of an effect that the members of one class share, as in one device's samples of a class.
    """
    rng = np.random.default_rng(seed)
    y, other_y = np.arange(members) % CLASSES, np.arange(others) % CLASSES
    effect = rng.normal(0, spread, CLASSES)
    own = rng.normal(lift, 1, members) + effect[y]
    return Scores(device, shift + scale * own, y, shift + scale * rng.normal(0, 1, others), other_y)


def wins(members, others):
    return np.mean([[1.0 * (a > b) + 0.5 * (a == b) for b in others] for a in members])


@pytest.mark.parametrize("decimals", [1, 8])
def test_the_auc_is_the_share_of_pairs_with_a_higher_member_and_ties_count_half(decimals):
    rng = np.random.default_rng(0)
    members, others = rng.normal(0.5, 1, 30).round(decimals), rng.normal(0, 1, 40).round(decimals)
    assert auc(members, others) == pytest.approx(wins(members, others))
    whole = Scores("a", members, np.arange(30) % 3, others, np.arange(40) % 3)
    assert clustered_auc([whole]).value == pytest.approx(wins(members, others))


def by_samples(one, level=STRICT, seed=0):
    """Return the interval of a bootstrap over samples, which is the mistake that clusters prevent."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(DRAWS // 3):
        found.append(auc(rng.choice(one.members, len(one.members)), rng.choice(one.others, len(one.others))))
    half = student(1_000, level) * np.std(found)
    return Figure(
        auc(one.members, one.others), auc(one.members, one.others) - half, auc(one.members, one.others) + half
    )


def covered(interval, runs=40):
    """Return in how many runs the interval contains the true value 0.5, if the samples of a class are similar."""
    return sum(interval(scores(seed, spread=0.8)).contains(0.5) for seed in range(runs))


def test_an_interval_over_clusters_contains_the_truth_and_one_over_samples_does_not():
    clusters, samples = covered(lambda one: clustered_auc([one], level=STRICT)), covered(by_samples)
    assert clusters >= 38  # of 40, at a level of 99 %
    assert samples < 35, "the test would not notice a bootstrap over samples"


@pytest.mark.parametrize("devices", [1, 6])
def test_controls_are_at_chance_in_20_of_20_seeds(devices):
    for seed in range(20):
        whole = [scores(100 * seed + place, device=f"d{place}") for place in range(devices)]
        found = membership(whole, seed)
        assert found.sound and found.control.contains(0.5)
        assert clustered_auc(whole, seed, STRICT).contains(0.5)


def test_scores_of_devices_with_different_scales_are_standardised_before_they_are_pooled():
    """The AUC of each device is the same, so the AUC of all devices together must be the same too."""
    alone = [
        scores(place, lift=1.5, shift=50.0 * place, scale=10.0**place, device=str(place))
        for place in range(4)
    ]
    expected = np.mean([auc(one.members, one.others) for one in alone])
    raw = auc(np.concatenate([one.members for one in alone]), np.concatenate([one.others for one in alone]))
    assert membership(alone).auc.value == pytest.approx(expected, abs=0.02)
    assert abs(raw - expected) > 0.1, "the test would not notice scores that are not standardised"


def test_scores_are_standardised_on_non_members_only():
    one = scores(0, lift=3.0).standardised()
    assert one.others.mean() == pytest.approx(0) and one.others.std() == pytest.approx(1)
    assert one.members.mean() > 2


def test_a_control_that_knows_half_of_the_non_members_is_not_sound():
    """The AUC has no meaning if the scores depend on the half of the non-members to which a sample belongs."""
    clean = scores(0)
    leaking = clean.others + 1.5 * every_second(clean.other_classes)
    assert membership([clean]).sound
    assert not membership([replace(clean, others=leaking)]).sound


def test_a_rate_of_one_per_cent_is_not_measured_with_fewer_than_1000_non_members():
    few, enough = scores(0, others=LEAST_OTHERS - 1), scores(0, others=LEAST_OTHERS)
    assert all(math.isnan(figure.value) for figure in rates([few]))
    assert not any(math.isnan(figure.value) for figure in rates([enough]))


def test_the_threshold_is_set_on_one_half_of_the_non_members_and_applied_to_the_other():
    """With a threshold on the same samples, the false positive rate would be 1 % in every run."""
    found = [rates([scores(seed, others=2_000)])[1].value for seed in range(20)]
    assert len(set(found)) > 5
    assert np.mean(found) == pytest.approx(RATE, abs=0.004)


def test_a_threshold_that_was_set_on_other_samples_finds_the_stated_share_of_members():
    found, wrong = rates([scores(0, members=2_000, others=20_000, lift=2.326)])
    assert found.contains(0.5) and wrong.contains(RATE)


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (13, 1_000), (990, 1_000)])
def test_a_clopper_pearson_interval_leaves_half_of_the_error_on_each_side(hits, trials):
    def at_least(k, p):
        return sum(math.comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(k, trials + 1))

    found = clopper_pearson(hits, trials)
    tail = (1 - LEVEL) / 2
    assert found.value == hits / trials
    assert found.low == 0 if hits == 0 else at_least(hits, found.low) == pytest.approx(tail, rel=1e-6)
    assert (
        found.high == 1
        if hits == trials
        else 1 - at_least(hits + 1, found.high) == pytest.approx(tail, rel=1e-6)
    )


def test_a_proportion_of_no_trials_is_not_measured():
    assert math.isnan(clopper_pearson(0, 0).value)


def test_every_second_sample_of_each_class_is_in_the_first_half():
    labels = np.array([0, 0, 0, 1, 1, 2])
    first = every_second(labels)
    assert [int(first[labels == label].sum()) for label in range(3)] == [2, 1, 1]


def test_a_single_cluster_gives_no_interval():
    one = Scores("a", np.array([1.0, 2.0]), np.zeros(2, int), np.array([0.0, 1.5]), np.zeros(2, int))
    assert math.isnan(clustered_auc([one]).low) or clustered_auc([one]).low == -math.inf


def test_a_figure_without_an_interval_contains_nothing():
    assert not Figure(0.5).contains(0.5)
    assert not Membership(Figure(0.9), Figure(0.5), Figure(0.1), Figure(0.01)).sound
