"""Many devices run on one loop: each gets its turns, and a fault ends only the device that has it."""

import logging
import queue
from collections import defaultdict
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.group.group import DeviceGroup, MemberQueue, words_of
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Arrived, Connected, StopRequest
from protofleet.runtime.broker_session import BrokerSession

NEVER = float("inf")


class FakeAgent:
    """A false agent with the parts that a group uses."""

    def __init__(self):
        self.finished, self.taken, self.woken, self._due = False, [], [], NEVER
        self.session = BrokerSession(logging.getLogger("fake"))
        self.view = SimpleNamespace(connected=True, problem="", cannot_follow=False)

    @property
    def wake_at(self):
        return min(self._due, self.session.wake_at)

    @wake_at.setter
    def wake_at(self, due):
        self._due = due

    def take(self, item, now):
        if isinstance(item, Connected):
            self.session.accepted()
        if isinstance(item, Arrived) and item.frame == b"bad":
            raise ValueError("an unexpected error")
        if isinstance(item, StopRequest):
            self.finished, self.view.problem = True, item.reason
        self.taken.append(item)

    def wake(self, now):
        self.session.check(now)
        self.woken.append(now)
        self.wake_at = NEVER


class FakeTransport:
    killed = closed = False

    def kill(self):
        self.killed = True


def member(name, patience=NEVER):
    return SimpleNamespace(
        settings=SimpleNamespace(name=name, patience_seconds=patience), agent=FakeAgent(), status=None,
        transport=FakeTransport(), pages=ExitStack(), check=lambda: None, stop=lambda: None,
    )  # fmt: skip


class Fleet:
    """A group of three devices and the queue that the group waits for."""

    def __init__(self, most_restarts=NEVER, unready=(), error=None, **options):
        self.ready, self.now, self.options = queue.SimpleQueue(), 0.0, options
        self.inboxes, self.devices, self.broken = {}, {}, set(unready)
        self.error = error or OSError("its folder is gone")
        self.tried = defaultdict(list)
        self.group = DeviceGroup("abc", self.start, most_restarts, clock=lambda: self.now)

    def start(self, name):
        self.tried[name].append(self.now)
        if name in self.broken:
            raise self.error
        self.inboxes[name], self.devices[name] = MemberQueue(self.ready), member(name, **self.options)
        return self.inboxes[name], self.devices[name]

    @property
    def ended(self):
        return self.group.ended

    def turn(self):
        while not self.ready.empty():
            self.group.take(self.ready.get(), self.now)

    def wake(self, at):
        self.now = at
        self.group.wake(at)

    def agent(self, name):
        return self.devices[name].agent


def test_each_item_reaches_only_its_device():
    fleet = Fleet()
    for name in "abacb":
        fleet.inboxes[name].put(Arrived(name, b"x"))
    fleet.turn()
    assert {name: len(fleet.agent(name).taken) for name in "abc"} == {"a": 2, "b": 2, "c": 1}


def test_an_error_of_one_device_is_logged_and_ends_only_that_device(caplog):
    fleet = Fleet()
    fleet.inboxes["b"].put(Arrived("t", b"bad"))
    for name in "abc":
        fleet.inboxes[name].put(Arrived("t", b"good"))
    fleet.turn()
    assert fleet.ended == {"b": "ValueError: an unexpected error"} and "go on" in caplog.text
    assert fleet.devices["b"].transport.killed, "its will tells the coordinator"
    assert [len(fleet.agent(name).taken) for name in "abc"] == [1, 0, 1]
    assert not fleet.group.finished


def test_a_protofleet_error_is_shown_without_the_name_of_its_class():
    assert words_of(DataError("there are no pictures")) == "there are no pictures"
    assert words_of(KeyError("x")) == "KeyError: 'x'"


def test_each_device_wakes_when_it_is_due():
    fleet = Fleet()
    for at, name in enumerate("cab", 1):
        fleet.agent(name).wake_at = float(at)
        fleet.inboxes[name].put(Arrived("t", b"good"))
    fleet.turn()
    fleet.wake(0.0)  # the checks that run every few seconds
    assert fleet.group.wake_at == 1.0
    fleet.wake(2.5)
    assert [fleet.agent(name).woken for name in "abc"] == [[2.5], [], [2.5]]
    assert fleet.group.wake_at == 3.0


def test_a_stop_ends_all_devices_and_keeps_the_reason():
    fleet = Fleet()
    fleet.group.put(StopRequest("signal: SIGTERM"))
    while not fleet.ready.empty():
        fleet.group.take(fleet.ready.get(), 0.0)
    assert fleet.group.finished and fleet.ended == dict.fromkeys("abc", "signal: SIGTERM")


def test_only_a_device_without_a_broker_within_its_patience_ends():
    fleet = Fleet(patience=60.0)
    for name in "bc":
        fleet.inboxes[name].put(Connected(1 << 20, 20))
    fleet.turn()
    fleet.wake(59.0)
    assert not fleet.ended
    fleet.wake(60.0)
    assert list(fleet.ended) == ["a"] and "gave up after 60 s" in fleet.ended["a"]


def test_a_device_that_an_error_ended_starts_again(caplog):
    fleet = Fleet()
    fleet.wake(100.0)
    first, inbox = fleet.devices["b"], fleet.inboxes["b"]
    inbox.put(Arrived("t", b"bad"))
    fleet.turn()
    assert len(fleet.group.running) == 2 and "starts again in 0.5 s" in caplog.text  # it ran for a long time
    fleet.wake(100.4)
    assert fleet.devices["b"] is first
    assert fleet.group.wake_at == 100.5
    fleet.wake(100.5)
    assert fleet.devices["b"] is not first and len(fleet.group.running) == 3 and not fleet.ended
    inbox.put(Arrived("t", b"late"))  # the result of its earlier work
    fleet.inboxes["b"].put(Arrived("t", b"good"))
    fleet.turn()
    assert fleet.agent("b").taken == [Arrived("t", b"good")]


def test_a_device_that_cannot_start_is_tried_at_growing_intervals_up_to_the_limit():
    fleet = Fleet(most_restarts=3)
    fleet.broken.add("c")
    fleet.inboxes["c"].put(Arrived("t", b"bad"))
    fleet.turn()
    for second in range(1, 30):
        fleet.wake(float(second))
        assert list(fleet.group.given_up) == ["c"] * (second >= 7)
    assert fleet.tried["c"] == [0.0, 1.0, 3.0, 7.0] and fleet.ended == {"c": "OSError: its folder is gone"}
    fleet.broken.clear()
    fleet.wake(1000.0)
    assert len(fleet.group.running) == 2


@pytest.mark.parametrize(
    ("error", "most_restarts", "times"), [(DataError, 2, 1), (SettingsError, NEVER, 1), (DataError, NEVER, 2)]
)
def test_wrong_data_or_settings_are_logged_in_one_line_and_cause_at_most_one_retry(
    error, most_restarts, times, caplog
):
    """Without a limit, data get a second try, because their disk may be mounted later."""
    fleet = Fleet(most_restarts, unready=["c"], error=error("c has 0 training samples; add samples"))
    fleet.wake(1.5)
    assert len(fleet.tried["c"]) == times and (fleet.group.given_up == fleet.ended) is (times == 1)
    said = [record for record in caplog.records if record.levelname == "ERROR"]
    line = "cannot start: c has 0 training samples; add samples; the other devices of this process go on"
    assert [record.getMessage() for record in said] == [line] * times
    assert not any(record.exc_info for record in said) and len(fleet.group.running) == 2


@pytest.mark.parametrize(("most_restarts", "given_up"), [(3, ["b"]), (NEVER, [])])
def test_a_device_that_cannot_follow_a_plan_is_given_up_only_if_restarts_are_limited(most_restarts, given_up):
    fleet = Fleet(most_restarts)
    view = fleet.agent("b").view
    fleet.agent("b").finished, view.problem, view.cannot_follow = True, "cannot follow: mine.py:3", True
    fleet.inboxes["b"].put(Arrived("t", b"the plan"))
    fleet.turn()
    assert fleet.ended == {"b": "cannot follow: mine.py:3"}
    assert list(fleet.group.given_up) == given_up


def test_a_stop_ends_a_group_in_which_a_device_waits_for_its_next_start():
    fleet = Fleet()
    fleet.inboxes["a"].put(Arrived("t", b"bad"))
    fleet.turn()
    fleet.group.put(StopRequest("signal: SIGTERM"))
    fleet.turn()
    assert fleet.group.finished
    assert fleet.ended == {"a": "ValueError: an unexpected error"} | dict.fromkeys("bc", "signal: SIGTERM")


def test_a_group_whose_devices_all_wait_for_their_next_start_has_not_finished():
    fleet = Fleet()
    for name in "abc":
        fleet.inboxes[name].put(Arrived("t", b"bad"))
    fleet.turn()
    assert not fleet.group.running and not fleet.group.finished and not fleet.group.given_up


def test_a_group_finishes_with_its_run_even_if_a_device_waits_for_its_next_start():
    fleet = Fleet()
    fleet.inboxes["a"].put(Arrived("t", b"bad"))
    for name in "bc":
        fleet.agent(name).finished = True
        fleet.inboxes[name].put(Arrived("t", b"the last"))
    fleet.turn()
    assert fleet.group.finished and list(fleet.ended) == ["a"]
