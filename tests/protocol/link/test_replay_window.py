"""Tests that each sequence number is accepted once, against a plain set of all numbers that were seen."""

from dataclasses import astuple
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.protocol.link.replay_window import WIDTH, ReplayWindow
from protofleet.protocol.wire.reasons import Reason, Rejected

EDGES = st.sampled_from([0, 1, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 2**63, 2**64 - 1])
SEQUENCES = st.integers(0, 40) | st.integers(WIDTH - 20, WIDTH + 20) | EDGES
BOOTS = st.integers(0, 3)


class Naive:
    def __init__(self):
        self.boot, self.seen = 0, set()

    def is_new(self, boot, sequence):
        if boot < self.boot:
            return "stale"
        if boot > self.boot:
            self.boot, self.seen = boot, set()
        newest = max(self.seen, default=sequence)
        new = sequence not in self.seen and newest - sequence < WIDTH
        self.seen |= {sequence} if new else set()
        return new


def verdict(window, boot, sequence):
    try:
        return window.is_new(boot, sequence)
    except Rejected as fault:
        assert fault.reason is Reason.STALE_BOOT
        return "stale"


@given(st.lists(st.tuples(BOOTS, SEQUENCES), max_size=40))
def test_a_replay_window_decides_like_a_set_of_all_seen_numbers(arrivals):
    window, naive = ReplayWindow(), Naive()
    for boot, sequence in arrivals:
        assert verdict(window, boot, sequence) == naive.is_new(boot, sequence), (boot, sequence)
        assert getsizeof(astuple(window)[-1]) <= getsizeof(1 << WIDTH), "in bounded memory"


@given(st.sets(st.integers(1, 400), min_size=1).flatmap(lambda s: st.permutations(sorted(s))))
def test_missing_numbers_are_counted_from_the_first_received_number(order):
    """No receiver existed for earlier messages. The broker may deliver the will, number 0, and each message twice."""
    window = ReplayWindow()
    for sequence in (0, *order, *order, 0):
        window.is_new(1, sequence)
    between = range(order[0] + 1, max(order))
    assert window.missing == sum(1 for number in between if number not in order)
    window.count_from_next()
    window.is_new(1, max(order) + 5)
    assert window.missing == 0, "an end was away"
    window.is_new(1, max(order) + 7)
    assert window.missing == 1
    window.is_new(1, max(order) + 3)
    assert window.missing == 1, "what comes late was not missed"
    window.is_new(2, 3)
    assert window.missing == 0, "a new life is counted anew"


def test_numbers_that_were_sent_during_a_restart_are_not_counted_as_missing():
    window = ReplayWindow.up_to(5, 40)
    assert window.is_new(5, 47) and window.missing == 0
    assert window.is_new(5, 49) and window.missing == 1
    assert not window.is_new(5, 40)


@given(st.integers(0, 3 * WIDTH), st.lists(st.integers(0, 3 * WIDTH + 40), max_size=40))
def test_no_number_up_to_the_stored_mark_is_new_after_a_restart(mark, arrivals):
    """It does not matter which of them had arrived. A sender repeats a message that was lost if it still needs it."""
    window, naive = ReplayWindow.up_to(1, mark), Naive()
    naive.boot, naive.seen = 1, set(range(mark + 1))
    for sequence in (*arrivals, mark, max(0, mark - 1)):
        assert verdict(window, 1, sequence) == naive.is_new(1, sequence), (mark, sequence)
    assert window.is_new(2, 0), "a new process of the sender counts from its own beginning"


@given(st.permutations(range(1, 20)))
def test_each_number_is_accepted_exactly_once_in_any_order(order):
    window = ReplayWindow()
    assert all(window.is_new(1, s) for s in order)
    assert not any(window.is_new(1, s) for s in order)


@pytest.mark.parametrize("leap", [2**20, 2**40, 2**64 - 1])
def test_a_jump_to_a_huge_number_needs_little_memory(leap, little_memory):
    window = ReplayWindow()
    assert window.is_new(1, leap)
    assert not window.is_new(1, 1)
    assert window.is_new(2, 1) and window.is_new(2, leap)
    assert not window.is_new(2, leap - WIDTH) and window.is_new(2, leap - WIDTH + 1)
