"""Rounds begin after a pause and in the set hours of the day, also with clocks that jump."""

from dataclasses import replace
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from protofleet.coordinator.round.events import (
    Advance,
    Advanced,
    Answered,
    Joined,
    Pause,
    Recovered,
    Save,
    Stage,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.pace import Pace, hours_of, opening_words
from protofleet.coordinator.round.policy import Policy

HOUR = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")
POLICY = Policy(quorum=1, settle_seconds=0.0, straggler_factor=0.0)


def unix(*date, zone=timezone.utc):
    return datetime(*date, tzinfo=zone).timestamp()


def utc(at):
    return datetime.fromtimestamp(at, timezone.utc)


def berlin(at):
    return datetime.fromtimestamp(at, BERLIN)


def left(hours, at, local=utc):
    return Pace(hours=hours_of(hours), local=local, wall=at).seconds_left(0.0)


@pytest.mark.parametrize(("hours", "at", "seconds"), [
    ("22:00-06:00", (21, 59), 60.0), ("22:00-06:00", (22, 0), 0.0), ("22:00-06:00", (23, 59), 0.0),
    ("22:00-06:00", (5, 59), 0.0), ("22:00-06:00", (6, 0), 16 * HOUR), ("08:00-09:30", (9, 29), 0.0),
    ("08:00-09:30", (9, 30), 22.5 * HOUR), ("00:00-00:01", (0, 1), 24 * HOUR - 60.0), ("", (12, 0), 0.0),
])  # fmt: skip
def test_hours_may_include_midnight_and_their_end_is_not_included(hours, at, seconds):
    assert left(hours, unix(2026, 5, 4, *at)) == seconds


@pytest.mark.parametrize(
    "hours", ["22-06", "22:00-24:00", "9:00-10:00", "22:00-06:00,12:00-13:00", "22:00 - 06:00", "x" * 999]
)
def test_hours_in_another_format_are_refused_with_the_format(hours):
    with pytest.raises(ValueError, match="one window HH:MM-HH:MM") as error:
        Policy(hours=hours)
    assert len(str(error.value)) < 200


def test_a_window_with_equal_start_and_end_is_refused():
    with pytest.raises(ValueError, match='the end of a window must differ from its start; "" means all day'):
        Policy(hours="06:00-06:00")


def test_a_window_in_an_hour_that_the_clock_skips_begins_later_or_is_left_out():
    """In Berlin, 02:00 to 03:00 of 29 March 2026 does not exist."""
    before = unix(2026, 3, 29, 1, 59, zone=BERLIN)
    assert left("02:30-06:00", before, berlin) == 60.0
    assert left("02:15-02:45", before, berlin) == unix(2026, 3, 30, 2, 15, zone=BERLIN) - before


def test_rounds_begin_in_both_hours_if_the_clock_repeats_an_hour():
    """In Berlin, the clock shows 02:00 to 03:00 of 25 October 2026 twice."""
    first = unix(2026, 10, 25, 0, 30)  # 02:30 of summer time
    assert [left("02:00-03:00", at, berlin) for at in (first, first + HOUR)] == [0.0, 0.0]
    assert (
        left("02:00-03:00", first + 1.5 * HOUR, berlin)
        == unix(2026, 10, 26, 2, 0, zone=BERLIN) - first - 1.5 * HOUR
    )


def test_a_pause_that_ends_outside_the_hours_lasts_until_they_begin():
    pace = Pace(2 * HOUR, hours_of("22:00-06:00"), local=utc, wall=unix(2026, 5, 4, 5, 0))
    pace.round_ended(1, now=100.0)
    assert pace.seconds_left(100.0) == 17 * HOUR


def test_a_jump_of_the_wall_clock_changes_the_hours_and_no_pause_of_this_process():
    pace = Pace(600.0, local=utc, wall=unix(2026, 5, 4, 12, 0))
    pace.round_ended(1, now=100.0)
    for jump in (-1e9, 0.0, 1e8):
        pace.wall = unix(2026, 5, 4, 12, 0) + jump
        assert pace.seconds_left(400.0) == 300.0
    night = Pace(hours=hours_of("22:00-06:00"), local=utc, wall=unix(2026, 5, 4, 12, 0))
    assert night.seconds_left(0.0) == 10 * HOUR
    night.wall = unix(2026, 5, 4, 23, 0)
    assert night.seconds_left(1.0) == 0.0


@pytest.mark.parametrize(
    ("later", "rest"), [(0.0, 600.0), (200.0, 400.0), (600.0, 0.0), (1e9, 0.0), (-1e9, 600.0)]
)
def test_a_later_process_waits_for_the_rest_of_the_pause_and_never_longer(later, rest):
    pace = Pace(600.0, local=utc, ended=(3, 1000.0), wall=1000.0 + later)
    assert pace.round_ended(3, now=7.0) is None
    assert pace.seconds_left(7.0) == rest


def test_the_opening_time_names_the_day_only_if_it_is_far_away():
    noon = unix(2026, 5, 4, 12, 0)
    assert opening_words(unix(2026, 5, 4, 22, 0), noon, utc) == "22:00"
    assert opening_words(unix(2026, 5, 6, 22, 0), noon, utc) == "22:00 on 06 May"


# The machine. Its `now` is Unix time if it gets no other wall clock.


def machine(rounds=3, local=utc, **policy):
    m = RoundMachine(replace(POLICY, **policy), rounds)
    m.pace.local = local
    return m


def to_the_end_of_a_round(m, now, wall=None):
    """Take a machine that computes at the start of a round to the round's end, and return the last commands."""
    m.handle(Advanced("train", b"base"), now, wall)
    m.handle(Answered("a", m.round, "train", b"base"), now, wall)
    return m.handle(Advanced(None), now, wall)


def test_the_next_round_begins_pause_seconds_after_the_end_of_the_round_before():
    m = machine(pause_seconds=600.0)
    assert [type(c) for c in m.handle(Joined("a"), 50.0)] == [Save, Advance], "the first round begins at once"
    assert to_the_end_of_a_round(m, 100.0) == [Pause(1, 100.0)]
    assert (m.stage, m.next_round_at, m.wake_at) == (Stage.GATHERING, 700.0, 160.0)
    assert m.handle(Joined("b"), 699.0) == [] and m.wake_at == 700.0
    assert [type(c) for c in m.handle(Woke(), 700.0)] == [Save, Advance]
    assert (m.round, m.next_round_at) == (2, 0.0)


def test_the_last_evaluation_follows_its_round_at_once():
    m = machine(rounds=1, pause_seconds=600.0, hours="00:00-00:01")
    m.handle(Joined("a"), 0.0)
    commands = to_the_end_of_a_round(m, HOUR)
    assert [type(c) for c in commands] == [Save, Advance] and m.evaluating


def test_no_round_begins_outside_the_hours_and_a_running_round_continues_and_may_be_repeated():
    m = machine(hours="22:00-06:00", quorum=2, patience_seconds=60.0)
    night = unix(2026, 5, 4, 22, 0)
    for device in "ab":
        assert m.handle(Joined(device), night - 30.0) == []
    assert m.next_round_at == night and m.wake_at == night
    assert [type(c) for c in m.handle(Woke(), night)] == [Save, Advance]
    morning = unix(2026, 5, 5, 6, 0)
    m.handle(Advanced("train", b"base"), morning - 1.0)
    commands = m.handle(Woke(), morning + 59.0)  # no device has answered
    assert Advance in {type(c) for c in commands} and m.attempt == 1, "the same round, after 06:00"
    m.handle(Advanced("train", b"base"), morning + 60.0)
    for device in "ab":
        m.handle(Answered(device, 1, "train", b"base"), morning + 61.0)
    assert m.handle(Advanced(None), morning + 62.0) == []
    assert m.next_round_at == unix(2026, 5, 5, 22, 0)


def test_a_changed_clock_is_noticed_within_a_minute():
    m = machine(hours="22:00-06:00")
    noon = unix(2026, 5, 4, 12, 0)
    m.handle(Joined("a"), 0.0, noon)
    assert m.wake_at == 60.0
    assert [type(c) for c in m.handle(Woke(), 60.0, noon + 11 * HOUR)] == [Save, Advance]


def test_a_coordinator_that_died_in_a_pause_waits_for_the_rest_of_the_pause():
    m = machine(pause_seconds=600.0)
    m.resume(Recovered(2, 0, ("a",), closed={"train": ("a",)}, accepted={"train": {"a": b"base"}},
                       roster=("a",), ended=(2, 1000.0)))  # fmt: skip
    m.handle(Advanced("train", b"base"), 5.0, 1200.0)
    assert m.handle(Advanced(None), 5.0, 1200.0) == []
    assert m.next_round_at == 1600.0
    assert [type(c) for c in m.handle(Woke(), 405.0, 1600.0)] == [Save, Advance]


def test_a_policy_without_pause_and_hours_causes_no_pause_command():
    m = machine()
    m.handle(Joined("a"), 0.0)
    assert [type(c) for c in to_the_end_of_a_round(m, 1.0)] == [Save, Advance]
