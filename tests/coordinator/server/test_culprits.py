"""Trials find exactly the devices that must be left out, with a limited number of trials."""

import math

from hypothesis import given
from hypothesis import strategies as st

from protofleet.coordinator.server.culprits import GroupTest

DEVICES = [f"d{i:02}" for i in range(40)]


def found(order, works, most):
    tried = []

    def counts(kept):
        tried.append(kept)
        return works(kept)

    return GroupTest(counts, most).left_out(order), tried


@given(st.data(), st.integers(1, 40))
def test_exactly_the_guilty_answers_are_left_out_if_they_are_a_minority(data, n):
    order = data.draw(st.permutations(DEVICES[:n]))
    most = (n - 1) // 2
    guilty = data.draw(st.sets(st.sampled_from(order), min_size=1))
    left, tried = found(order, guilty.isdisjoint, most)
    assert set(left) == (guilty if len(guilty) <= most else set())
    assert len(tried) == len(set(tried)) <= 2 * n


@given(st.data(), st.integers(3, 40))
def test_the_remaining_answers_work_after_any_combination_of_faults(data, n):
    order, most = DEVICES[:n], (n - 1) // 2
    faults = data.draw(
        st.lists(st.sets(st.sampled_from(order), min_size=1, max_size=4), min_size=1, max_size=5)
    )

    def works(kept):
        return not any(fault <= kept for fault in faults)

    left, tried = found(order, works, most)
    assert not left or works(frozenset(order) - set(left))
    assert len(left) <= most and len(tried) <= 2 * n


def test_the_most_suspected_answer_takes_one_trial_and_another_takes_about_two_logarithms():
    for i in range(40):
        left, tried = found(DEVICES, lambda kept, one=DEVICES[i]: one not in kept, 19)
        assert left == [DEVICES[i]]
        assert len(tried) <= (1 if i == 39 else 2 * math.ceil(math.log2(40)) + 2), (i, len(tried))


def test_no_trial_runs_if_no_answer_may_be_left_out():
    assert found(["a", "b"], lambda kept: False, 0) == ([], [])


def test_the_trials_end_at_the_limit_if_no_subset_works():
    left, tried = found(DEVICES, lambda kept: False, 19)
    assert left == [] and len(tried) <= 2 * 40
