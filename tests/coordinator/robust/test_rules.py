"""Tests of the rules against lying devices: how far a minority of liars can move the result."""

import math

import pytest
import torch

from protofleet.coordinator.robust.rules import (
    CAP,
    expected,
    expected_by_krum,
    fitted,
    lower_median,
    middle,
)
from protofleet.coordinator.round.robust import RULES

HUGE = 1e38
WIDTH = 12
LIARS = 0.49  # Then `trimmed` expects as many liars as it can.
COORDINATE = ("trimmed", "median")
ROBUST = [rule for rule in RULES if rule != "mean"]
MOST = [(m, f) for m in range(3, 8) for f in range(1, (m - 1) // 2 + 1)]


class Vectors:
    """Vectors of all devices in memory, which are read in slices of `step` numbers."""

    def __init__(self, x, broadcast=None, step=WIDTH):
        self.x, self.step = x.double(), step
        self.broadcast = torch.zeros(x.shape[1]).double() if broadcast is None else broadcast.double()

    def slices(self):
        for start in range(0, self.x.shape[1], self.step):
            stop = start + self.step
            yield self.x[:, start:stop], self.broadcast[start:stop]


def result(rule, x, broadcast=None, shares=None, liars=LIARS, step=WIDTH):
    points = Vectors(x, broadcast, step)
    own = torch.full((len(x),), 1 / len(x), dtype=torch.float64) if shares is None else shares
    combine = fitted(rule, points, own, liars)
    return torch.cat([combine(part, sent) for part, sent in points.slices()])


def honest_of(m, seed=0):
    return torch.randn(m, WIDTH, generator=torch.Generator().manual_seed(seed)).double()


def with_liars(m, f, lie, seed=0):
    """Return the vectors of m devices, of which the first f send a lie, and the honest vectors."""
    x = honest_of(m, seed)
    x[:f] = lie
    return x, x[f:]


@pytest.mark.parametrize("lie", [HUGE, -HUGE])
@pytest.mark.parametrize("rule", COORDINATE)
@pytest.mark.parametrize("m, f", MOST)
def test_each_number_stays_between_the_honest_numbers(m, f, rule, lie):
    x, honest = with_liars(m, f, lie)
    found = result(rule, x)
    assert bool((honest.min(dim=0).values <= found).all() and (found <= honest.max(dim=0).values).all())


@pytest.mark.parametrize("lie", [HUGE, -HUGE])
@pytest.mark.parametrize("m, f", MOST)
def test_clipping_stays_within_the_radius_of_the_honest_devices_around_the_median(m, f, lie):
    x, honest = with_liars(m, f, lie)
    centre = middle(x)
    assert bool((honest.min(dim=0).values <= centre).all() and (centre <= honest.max(dim=0).values).all())
    radius = float((honest - centre).norm(dim=1).max())
    assert float((result("clip_median", x) - centre).norm()) <= radius * (1 + 1e-9)


@pytest.mark.parametrize("lie", [HUGE, -HUGE])
@pytest.mark.parametrize("m, f", MOST)
def test_a_cap_moves_the_broadcast_by_at_most_three_honest_differences(m, f, lie):
    x, honest = with_liars(m, f, lie)
    broadcast = torch.linspace(-1, 1, WIDTH).double()
    longest = float((honest - broadcast).norm(dim=1).max())
    assert float((result("cap", x, broadcast) - broadcast).norm()) <= CAP * longest * (1 + 1e-9)


@pytest.mark.parametrize("lie", [HUGE, -HUGE])
@pytest.mark.parametrize("m, f", MOST)
def test_the_geometric_median_stays_near_the_honest_devices(m, f, lie):
    """The bound is that of Minsker (2015), lemma 2.1, for points within a distance of any centre."""
    x, honest = with_liars(m, f, lie)
    centre, share = honest.mean(dim=0), f / m
    bound = (1 - share) / math.sqrt(1 - 2 * share) * float((honest - centre).norm(dim=1).max())
    assert float((result("geometric", x) - centre).norm()) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("lie", [HUGE, -HUGE])
@pytest.mark.parametrize("m, f", [(m, f) for m, f in MOST if f <= expected_by_krum(m, LIARS)])
def test_multikrum_chooses_no_device_that_is_far_from_all_honest_devices(m, f, lie):
    x, honest = with_liars(m, f, lie)
    wide = float(torch.cdist(honest, honest).max())
    found = result("multikrum", x)
    assert float((honest - found).norm(dim=1).min()) <= (1 + math.sqrt(max(1, m - f - 2))) * wide


def test_one_liar_with_huge_values_moves_the_plain_mean_without_limit():
    x, honest = with_liars(6, 1, HUGE)
    assert float((result("mean", x) - honest.mean(dim=0)).abs().max()) > 1e36


def worst_deviation(rule, lies, m=6):
    """Return the largest distance of the result from the mean of the honest devices, in their largest distance."""
    honest = honest_of(m - 1, seed=3)
    centre = honest.mean(dim=0)
    spread = float((honest - centre).norm(dim=1).max())
    found = (result(rule, torch.cat([lie.unsqueeze(0), honest]), liars=0.2) for lie in lies)
    return max(float((one - centre).norm()) for one in found) / spread


# Largest distance that the search finds for one liar of six, as a part of the largest honest distance.
REACHED = {
    "cap": 0.46,
    "clip_median": 0.24,
    "trimmed": 0.31,
    "median": 0.36,
    "geometric": 0.24,
    "multikrum": 0.51,
}


@pytest.mark.parametrize("rule", ROBUST)
def test_the_worst_liar_moves_the_result_of_each_rule_no_further_than_its_limit(rule):
    """Search the length gamma of -gamma mean and the number z of mean - z std that do most harm."""
    honest = honest_of(5, seed=3)
    mean, std = honest.mean(dim=0), honest.std(dim=0)
    lengths = torch.logspace(-2, 38, 201, dtype=torch.float64)
    lies = [-gamma * mean for gamma in lengths] + [mean - z * std for z in torch.linspace(0, 10, 101)]
    worst = worst_deviation(rule, lies)
    assert worst <= REACHED[rule]
    assert worst_deviation("mean", lies) > 1e30


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_the_devices_does_not_change_the_result(rule):
    x = honest_of(7)
    shares = torch.arange(1.0, 8.0).double() / 28
    order = torch.tensor([3, 1, 6, 0, 5, 2, 4])
    torch.testing.assert_close(
        result(rule, x, shares=shares), result(rule, x[order], shares=shares[order]), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_result_moves_with_its_cohort(rule):
    x, move = honest_of(6), torch.linspace(-5, 5, WIDTH).double()
    moved = result(rule, x + move, broadcast=move)
    torch.testing.assert_close(moved, result(rule, x) + move, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("step", [1, 5])
def test_slices_give_the_result_of_whole_vectors(rule, step):
    x, broadcast = honest_of(6), torch.ones(WIDTH)
    whole, sliced = result(rule, x, broadcast), result(rule, x, broadcast, step=step)
    if rule in ("mean", *COORDINATE):
        assert torch.equal(sliced, whole)
    torch.testing.assert_close(sliced, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_devices_that_agree_get_their_own_vector(rule):
    x = honest_of(1).expand(6, WIDTH)
    torch.testing.assert_close(result(rule, x), x[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("m", [1, 2])
def test_each_rule_is_a_cap_with_one_or_two_devices(rule, m):
    x, _ = with_liars(m, 1, HUGE)
    assert torch.equal(result(rule, x), result("cap", x))


def test_the_longer_difference_of_two_devices_is_capped():
    broadcast = torch.ones(WIDTH)
    x = torch.stack([broadcast.double() + 1e30, broadcast.double() + 0.1])
    found = result("trimmed", x, broadcast) - broadcast
    torch.testing.assert_close(found, torch.full_like(found, (3 * 0.1 + 0.1) / 2))


def test_a_cap_keeps_the_mean_if_no_difference_is_long():
    x = honest_of(6)
    assert torch.equal(result("cap", x), result("mean", x))


def test_a_cap_ignores_the_only_device_that_moved_if_no_other_device_moved():
    x = torch.zeros(5, WIDTH).double()
    x[2] = HUGE
    assert bool((result("cap", x) == 0).all())


def test_trimmed_is_the_weighted_mean_of_the_numbers_that_are_left():
    x, shares = honest_of(5), torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15]).double()
    for place, found in enumerate(result("trimmed", x, shares=shares, liars=0.2)):
        left = sorted(zip(x[:, place].tolist(), shares.tolist(), strict=True))[1:-1]
        wanted = sum(value * share for value, share in left) / sum(share for _, share in left)
        assert float(found) == pytest.approx(wanted, rel=1e-12)


def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median():
    x = honest_of(7, seed=5)
    found = result("geometric", x)
    best = float((x - found).norm(dim=1).sum())
    for seed in range(50):
        near = found + 1e-3 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)).double()
        assert float((x - near).norm(dim=1).sum()) >= best


def test_multikrum_is_the_mean_of_the_devices_with_the_nearest_neighbours():
    x = honest_of(6, seed=2)
    squares = torch.cdist(x, x).square()
    scores = [sum(sorted(row.tolist())[1:4]) for row in squares]  # Without itself: 6 - 1 - 2 neighbours.
    chosen = sorted(range(6), key=lambda i: (scores[i], i))[:4]
    torch.testing.assert_close(result("multikrum", x, liars=0.2), x[chosen].mean(dim=0))


@pytest.mark.parametrize("m, f", [(1, 0), (2, 0), (3, 1), (5, 1), (6, 1), (10, 2), (20, 4)])
def test_a_fifth_of_the_devices_and_at_least_one_is_expected_to_lie(m, f):
    assert expected(m, 0.2) == f


@pytest.mark.parametrize("m", range(3, 30))
def test_the_expected_number_of_liars_is_less_than_half_of_the_devices(m):
    assert expected(m, 0.499) < m / 2
    f = expected_by_krum(m, 0.499)
    assert f == 1 or m >= 2 * f + 3


def test_the_median_of_an_even_number_of_norms_is_the_lower_one():
    assert lower_median(torch.tensor([4.0, 1.0, 3.0, 2.0])) == 2.0
