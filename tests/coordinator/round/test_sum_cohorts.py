"""The cohort of a masked sum, and the wait for the devices without which no sum is possible."""

import itertools

import pytest

from protofleet.coordinator.round.past_sums import PastSum, PastSums
from protofleet.coordinator.round.sum_cohorts import SumCohorts

PATIENCE = 60.0
FIVE = frozenset("abcde")


def cohorts(*last, apart=3):
    return SumCohorts(apart, last or (FIVE,))


@pytest.mark.parametrize("here, chosen", [
    ("abcde", "abcde"),
    ("abcdef", "abcde"),
    ("abcdefg", "abcde"),
    ("abcdefgh", "abcdefgh"),
    ("ab", "ab"),
    ("abcd", "abcd"),  # No cohort of these devices can have a sum, so all of them train.
])  # fmt: skip
def test_new_devices_wait_until_they_are_enough_and_the_devices_of_the_last_sum_stay(here, chosen):
    assert cohorts().chosen(frozenset(here), frozenset(here)) == frozenset(chosen)


def test_the_devices_of_the_last_sum_replace_a_drawn_cohort_that_is_too_close():
    assert cohorts().chosen(frozenset("abcd"), frozenset("abcdefg")) == FIVE
    assert cohorts().chosen(frozenset("abefg"), frozenset("abcdefg")) == frozenset("abefg")


def test_a_chosen_cohort_equals_each_last_sum_or_differs_by_enough_devices():
    names = "abcdef"
    sets = [frozenset(s) for n in range(3, 7) for s in itertools.combinations(names, n)]
    for one, two, here in itertools.product(sets, sets[::3], sets[::2]):
        found = cohorts(one, two)
        chosen = found.chosen(here, here)
        fits = all(len(chosen ^ last) in (0, *range(3, 7)) for last in (one, two))
        assert chosen <= here
        assert found.missing(here) == (frozenset() if fits else (one | two) - here)


def test_without_a_limit_each_cohort_may_follow():
    assert not cohorts(apart=0).missing(frozenset("abcd"))
    assert not SumCohorts(3).missing(frozenset("a"))


def test_the_run_waits_once_for_each_absence_of_a_device():
    found, four = cohorts(), FIVE - {"e"}
    assert not found.holds_back(FIVE, 0.0, PATIENCE) and found.wait_until is None
    assert found.holds_back(four, 10.0, PATIENCE) and found.wait_until == 70.0
    assert found.holds_back(four, 69.0, PATIENCE)
    assert not found.holds_back(four, 70.0, PATIENCE) and found.wait_until is None
    assert not found.holds_back(four, 71.0, PATIENCE), "the run continues without a sum"
    found.joined("e")
    assert not found.holds_back(FIVE, 80.0, PATIENCE)
    assert found.holds_back(four, 90.0, PATIENCE) and found.wait_until == 150.0
    assert not found.holds_back(FIVE, 91.0, PATIENCE) and found.wait_until is None


def test_the_silence_of_a_device_of_the_last_sum_ends_once_for_each_connection():
    found = cohorts()
    assert [found.joined("e"), found.joined("e"), found.joined("f")] == [True, False, False]
    found.left("e")
    assert found.joined("e")
    assert not cohorts(apart=0).joined("e")


def test_an_attempt_follows_the_last_sum_of_its_stage_before_it_also_in_a_replay():
    sums = [
        PastSum(1, 0, "presence", ("a", "b", "c")),
        PastSum(1, 0, "values", ("a", "b", "c")),
        PastSum(2, 0, "presence", ("a", "b", "c", "d")),
        PastSum(2, 1, "presence", ("b", "c", "d")),
        PastSum(2, 1, "values", ("b", "c", "d")),
    ]
    past = PastSums(sums[:2])
    for one in sums[2:]:
        past.note(one)
    for stage, round, attempt, devices in (
        ("presence", 1, 0, ""), ("values", 2, 0, "abc"), ("presence", 2, 0, "abc"), ("presence", 2, 1, "abcd"),
        ("values", 2, 1, "abc"), ("presence", 3, 0, "bcd"), ("values", 3, 2, "bcd"),
    ):  # fmt: skip
        assert past.before(stage, round, attempt) == tuple(devices)
    assert past.newest() == tuple(sums[3:])
