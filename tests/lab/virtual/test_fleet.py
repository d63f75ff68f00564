"""Tests of a virtual fleet: which board and which line each device has, and when it is available."""

import math
import random

import pytest

from protofleet.coordinator.round.pace import hours_of
from protofleet.lab.virtual.fleet import Availability, drawn, most_at_once, virtual_fleet
from protofleet.protocol.settings.reader import SettingsError
from tests.lab.virtual.small import PROFILES, profiles

HOUR = 3600.0


@pytest.mark.parametrize(
    ("shares", "number", "counts"),
    [
        ({"a": 0.5, "b": 0.5}, 6, {"a": 3, "b": 3}),
        ({"a": 0.6, "b": 0.4}, 6, {"a": 4, "b": 2}),
        ({"a": 0.1, "b": 0.9}, 3, {"a": 0, "b": 3}),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 1000, {"a": 334, "b": 333, "c": 333}),
        ({"a": 0.29, "b": 0.71}, 100, {"a": 29, "b": 71}),  # 0.29 * 100 is below 29 as a float.
    ],
)
def test_each_kind_of_board_gets_its_share_of_the_devices(shares, number, counts):
    found = drawn(shares, number, random.Random(0))
    assert {name: found.count(name) for name in shares} == counts


def test_the_same_seed_gives_the_same_fleet_and_another_seed_gives_another_one(tmp_path):
    more = PROFILES.replace("share = 1\nup", "share = 0.5\nup")
    read = profiles(tmp_path, more + "[lines.fibre]\nshare = 0.5\nup = 100\ndown = 100\n")
    names = [f"d{i}" for i in range(20)]

    def lines(seed):
        return [one.line_name for one in virtual_fleet(read, names, seed, 1).values()]

    assert lines(1) == lines(1)
    assert lines(1) != lines(2)
    assert sorted(lines(1)) == sorted(lines(2))


@pytest.mark.parametrize("hours", ["22:00-06:00", "06:00-22:00", "00:00-00:01", "23:59-00:00"])
@pytest.mark.parametrize("begins", [0.0, 7.5 * HOUR, 23 * HOUR])
def test_availability_by_hours_of_the_day_agrees_with_the_hours_of_the_policy(hours, begins):
    """The test compares each minute of two days."""
    found = hours_of(hours)
    times = Availability(found, begins)
    for minute in range(2 * 24 * 60):
        now = 60.0 * minute + 1.0
        start, end = times.next(now)
        is_on = found.holds(int((now + begins) // 60) % (24 * 60))
        assert (start <= now < end) is is_on
        assert end > now and end > start


def test_availability_ends_after_the_last_interval():
    times = Availability(intervals=[(10, 20), (30, 40)])
    assert [times.next(now) for now in (0, 10, 20, 39)] == [(10, 20), (10, 20), (30, 40), (30, 40)]
    assert times.next(40) is None
    assert Availability().next(1e9) == (0, math.inf)


def test_devices_take_the_traces_in_turn(tmp_path):
    (tmp_path / "trace.csv").write_text("device,from,until\na,0,10\nb,5,15\n")
    read = profiles(tmp_path, f"{PROFILES}[availability]\ntrace = 'trace.csv'\n")
    fleet = virtual_fleet(read, ["d1", "d2", "d3"], 0, 3)
    assert [one.availability.intervals for one in fleet.values()] == [[(0, 10)], [(5, 15)], [(0, 10)]]


def test_a_fleet_that_never_has_a_quorum_is_refused(tmp_path):
    (tmp_path / "trace.csv").write_text("device,from,until\na,0,10\nb,10,20\n")
    read = profiles(tmp_path, f"{PROFILES}[availability]\ntrace = 'trace.csv'\n")
    with pytest.raises(SettingsError, match=r"availability\.trace: at most 2 of 3 .*policy\.quorum is 3"):
        virtual_fleet(read, ["d1", "d2", "d3"], 0, 3)


def test_intervals_that_touch_do_not_overlap():
    assert most_at_once([[(0, 10)], [(10, 20)], [(5, 6)]]) == 2
