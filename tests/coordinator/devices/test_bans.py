"""Each ban ends after a limited time, also after a restart, and all unknown senders share one pause."""

import os

import pytest

from protofleet.coordinator.devices.bans import Bans, banned_in, lift
from protofleet.protocol.storage.partial import Partial
from protofleet.protocol.transport.base import Arrived
from tests.support.run_policy import RunPolicy
from tests.support.small_federation import simulation

HOUR, DAY = 3600.0, 86_400.0
NAME = "device-1"


class Clock:
    """A clock like that of the machine, which continues while no process runs."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def length(folder, clock, bans):
    """Return how many seconds a ban lasts for an observer that looks once a minute."""
    begun = clock.now
    while NAME in bans.banned:
        clock.now += 60.0
        bans.refresh(clock.now)
    assert not bans.drops(NAME) and NAME not in banned_in(folder, clock.now)
    return clock.now - begun


def test_a_ban_ends_after_its_time_and_each_next_ban_is_twice_as_long_up_to_a_day(tmp_path, clock):
    bans, lengths = Bans(tmp_path, clock=clock), []
    for _ in range(7):
        assert bans.ban(NAME, clock.now) and not bans.ban(NAME, clock.now) and bans.drops(NAME)
        lengths.append(length(tmp_path, clock, bans))
    assert lengths == [HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 16 * HOUR, DAY, DAY]


def test_a_restart_changes_neither_the_length_of_a_ban_nor_the_number_of_bans(tmp_path, clock):
    Bans(tmp_path, clock=clock).ban(NAME, 5.0)
    clock.now += HOUR / 2
    again = Bans(tmp_path, clock=clock)
    assert again.drops(NAME) and length(tmp_path, clock, again) == HOUR / 2
    last = Bans(tmp_path, clock=clock)
    assert not last.drops(NAME) and last.ban(NAME, 7.0)
    assert length(tmp_path, clock, Bans(tmp_path, clock=clock)) == 2 * HOUR


def test_a_ban_is_forgotten_a_quiet_day_after_its_end(tmp_path, clock):
    bans = Bans(tmp_path, clock=clock)
    bans.ban(NAME, clock.now)
    clock.now += HOUR + DAY
    assert bans.wake_at < clock.now
    bans.refresh(clock.now)
    assert not list((tmp_path / "banned").iterdir()) and bans.wake_at == float("inf")
    bans.ban(NAME, clock.now)
    assert length(tmp_path, clock, bans) == HOUR


def test_a_lifted_ban_ends_at_once_and_is_forgotten(tmp_path, clock):
    bans = Bans(tmp_path, clock=clock)
    bans.ban(NAME, 1.0)
    lift(tmp_path, NAME)
    bans.refresh(2.0)
    assert not bans.drops(NAME) and bans.ban(NAME, 3.0)
    assert length(tmp_path, clock, bans) == HOUR


@pytest.mark.parametrize(
    "text", ["it floods\n", "", "\x00\x00", "nan 1\n", "inf 2\n", "1 2 3\n", "soon never\n"]
)
def test_a_ban_file_without_a_time_lasts_an_hour_from_its_modification_time(tmp_path, clock, text):
    (tmp_path / "banned").mkdir()
    path = tmp_path / "banned" / NAME
    path.write_text(text)
    os.utime(path, (clock.now - HOUR / 4, clock.now - HOUR / 4))
    bans = Bans(tmp_path, clock=clock)
    assert bans.drops(NAME) and length(tmp_path, clock, bans) == HOUR * 3 / 4


def test_a_clock_that_was_set_back_does_not_extend_a_ban(tmp_path, clock):
    Bans(tmp_path, clock=clock).ban(NAME, 1.0)
    clock.now -= 1000 * DAY
    assert not Bans(tmp_path, clock=clock).drops(NAME)


def test_repeated_errors_during_a_pause_do_not_extend_it_and_pauses_double_up_to_a_day(tmp_path):
    bans, now = Bans(tmp_path), 0.0
    assert [bans.pause(NAME, 0.0) for _ in range(1100)] == [60.0] * 1100
    lengths = []
    for _ in range(1100):
        lengths.append(bans.pause(NAME, now := now + DAY))
    assert lengths[:3] == [120.0, 240.0, 480.0] and lengths[10:] == [DAY] * 1090


def test_all_invented_names_share_one_pause_that_stops_no_honest_transfer(tmp_path, monkeypatch):
    monkeypatch.setattr("protofleet.protocol.link.run_part.INLINE", 64)
    policy = RunPolicy(rounds=2, quorum=2, patience_seconds=20.0, grace_seconds=1.0, settle_seconds=0.5)
    run = simulation(tmp_path, "fedavg", policy=policy)
    for agent in run.agents.values():
        agent.link.inline, agent.link.adapt = 64, lambda *limits: None
    service, given_up = run.service, []
    run.run(until=lambda: bool(service.run.link.answers.fetches))
    abandon = Partial.abandon
    monkeypatch.setattr(
        Partial, "abandon", lambda part, forget=True: (given_up.append(part), abandon(part, forget))
    )
    for i in range(1000):
        service.take(Arrived(run.topics.up(f"n{i}"), bytes(60)), service.context.now)
    assert service.context.bans.ignored == {""} and not given_up
    assert all(service.unwanted(run.topics.up(f"n{i}")) for i in range(10))
    assert not service.unwanted(run.topics.up(NAME))
    monkeypatch.undo()
    run.run()
    assert service.finished and not service.stopped and service.context.error_boundary.cut_off == 0
    assert len(service.run.machine.roster) == 3 and not service.context.bans.banned
