"""A device has one task at a time, and a free device goes to the run with the least device time for its weight."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from protofleet.coordinator.dispatcher import Dispatcher
from protofleet.coordinator.round.events import Send


@dataclass
class Asking:
    """A run that notes the tasks that it sends."""

    seconds: float = 0.0
    sent: list[Send] = field(default_factory=list)

    def device_seconds(self):
        return self.seconds

    def ask(self, send):
        self.sent.append(send)


class Fleet:
    """A dispatcher with two runs, a clock that a test moves, and the boots of the devices."""

    def __init__(self, **weights):
        self.now, self.boots = 0.0, {}
        self.dispatcher = Dispatcher(lambda: self.now, lambda device: self.boots.get(device, 1))
        self.runs = {}
        for name, weight in (weights or {"red": 1.0, "blue": 1.0}).items():
            self.add(name, weight)

    def add(self, name, weight=1.0, seconds=0.0, lift=0.0, starts=True):
        run = self.runs[name] = Asking(seconds)
        self.dispatcher.add(name, run, weight, lift, starts)
        return run

    def ask(self, name, device="a", round=1, seconds=60.0):
        send = Send(device, round, "train", seconds)
        if allowed := self.dispatcher.may_ask(name, send):
            self.runs[name].ask(send)
        return allowed


def test_a_task_waits_while_the_device_has_a_task_of_another_run():
    fleet = Fleet()
    assert fleet.ask("red") and fleet.ask("red"), "a run may repeat its own task"
    assert not fleet.ask("blue") and fleet.ask("blue", "b")
    assert fleet.dispatcher.held_back("blue", ["a", "b"]) == {"a": "red"}
    fleet.now = 20.0
    fleet.dispatcher.answered("red", "a")
    assert fleet.runs["blue"].sent == [Send("b", 1, "train", 60.0), Send("a", 1, "train", 40.0)], (
        "the time counts from the first call of ask"
    )
    assert fleet.dispatcher.busy_with("a") == "blue" and not fleet.dispatcher.held_back("blue", ["a"])


def test_only_a_leave_a_restart_a_report_or_a_closed_run_frees_a_device():
    for frees, free in {
        "left": lambda d: d.left("red", "a"),
        "a higher boot": lambda d: d.hello_received("a", 2, None),
        "it works on nothing": lambda d: d.hello_received("a", 1, ""),
        "it works for another run": lambda d: d.hello_received("a", 1, "blue"),
        "its run is closed": lambda d: d.remove("red"),
    }.items():
        fleet = Fleet()
        fleet.ask("red")
        fleet.ask("blue")
        for other in (
            lambda d: d.hello_received("a", 1, None),
            lambda d: d.hello_received("a", 1, "red"),
            lambda d: d.answered("blue", "a"),
            lambda d: d.answered("red", "b"),
        ):
            other(fleet.dispatcher)
            assert not fleet.runs["blue"].sent
        free(fleet.dispatcher)
        assert fleet.runs["blue"].sent, frees


def test_waiting_tasks_of_a_closed_phase_and_of_a_device_that_left_are_dropped():
    fleet = Fleet()
    for device in "ab":
        fleet.ask("red", device)
        fleet.ask("blue", device)
    fleet.dispatcher.left("blue", "b")
    fleet.dispatcher.answered("red", "b")
    assert not fleet.runs["blue"].sent and not fleet.dispatcher.busy_with("b")
    fleet.dispatcher.drop("blue")
    fleet.dispatcher.answered("red", "a")
    assert not fleet.runs["blue"].sent and not fleet.dispatcher.busy_with("a")


def test_only_the_newest_task_of_a_run_waits():
    fleet = Fleet()
    fleet.ask("red")
    fleet.ask("blue", round=1)
    fleet.ask("blue", round=2)
    fleet.dispatcher.answered("red", "a")
    assert [send.round for send in fleet.runs["blue"].sent] == [2]


def test_the_work_of_a_device_counts_from_its_first_task_although_a_hello_repeats_the_task():
    fleet = Fleet()
    fleet.ask("red")
    fleet.now = 30.0
    fleet.ask("red")
    fleet.now = 40.0
    assert fleet.dispatcher.worked("red", "a") == 40.0


def test_runs_that_always_send_tasks_share_the_device_time_by_their_weights():
    fleet, dice = Fleet(red=1.0, blue=2.0, green=1.0, grey=1.0), random.Random(7)
    for name in fleet.runs:
        fleet.ask(name)
    for _ in range(3000):
        name = fleet.dispatcher.busy_with("a")
        worked = 10.0 * dice.random()
        fleet.now += worked
        assert abs(fleet.dispatcher.worked(name, "a") - worked) < 1e-6
        fleet.runs[name].seconds += worked
        fleet.dispatcher.answered(name, "a")
        fleet.ask(name)
    total = sum(run.seconds for run in fleet.runs.values())
    shares = {name: round(run.seconds / total, 2) for name, run in fleet.runs.items()}
    assert shares == {"red": 0.2, "blue": 0.4, "green": 0.2, "grey": 0.2}


def test_a_new_run_gets_no_time_for_its_absence_and_a_restart_changes_no_claim():
    fleet = Fleet()
    fleet.runs["red"].seconds, fleet.runs["blue"].seconds = 500.0, 300.0
    fleet.add("green")
    assert fleet.dispatcher.lift_of("green") == 300.0
    again = Fleet()
    for name in again.runs:
        again.dispatcher.remove(name)
    for name, (seconds, lift) in {"red": (500.0, 0.0), "blue": (300.0, 0.0), "green": (0.0, 300.0)}.items():
        again.add(name, seconds=seconds, lift=lift, starts=False)
        assert again.dispatcher.lift_of(name) == lift
