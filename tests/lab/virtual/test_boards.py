"""Tests of virtual boards: how long a piece of work takes, and how many joules."""

import random
import re
from types import SimpleNamespace

import pytest

from protofleet.lab.simulation.network import VirtualClock
from protofleet.lab.virtual.boards import BoardJob, BoardWorker, VirtualBoard
from protofleet.lab.virtual.fleet import Availability, VirtualDevice
from protofleet.lab.virtual.jobs import JobResult
from protofleet.lab.virtual.least_work import LeastWork
from protofleet.lab.virtual.lines import VirtualLine
from protofleet.lab.virtual.profiles import BoardProfile, LineProfile
from protofleet.lab.virtual.worked import MeasuredWork
from protofleet.methods.plugins.authors import AuthorError
from protofleet.runtime.command.errors import RunError


def board(work=None, watts=4.0, line_watts=0.0, sizes=(), least=None):
    line = LineProfile(1.0, 8.0, 8.0, watts=line_watts)
    device = VirtualDevice("pi", BoardProfile(1.0, 0.5, watts=watts), "lte", line, Availability(), work)
    return VirtualBoard(device, VirtualLine.of(line, random.Random(0)), sizes, least or LeastWork())


class PlannedHost:
    """A host whose tasks have results that a test has chosen: samples of work, or an error."""

    def __init__(self, *results):
        self.results, self.tasks = list(results), []

    def start(self, device, plan):
        """Do nothing."""

    def begin(self, device, task):
        self.tasks.append(task)
        result = self.results.pop(0)

        def wait():
            if isinstance(result, Exception):
                raise result
            return JobResult({"a": result}, {}, result, {"state": result})

        return wait


class Desk:
    """A worker with a job on a board. It records when and how each piece of work has ended."""

    def __init__(self, on, *results, batch=10):
        self.clock, self.ends, self.saved = VirtualClock(), [], []
        self.worker = BoardWorker(self.clock, lambda item: item.call(), board=on)
        plan = SimpleNamespace(settings=lambda: SimpleNamespace(batch=batch))
        self.host = PlannedHost(*results)
        self.job = BoardJob(self.host, on, "device", plan)

    def submit(self, phase="train"):
        def work():
            self.job.run(phase, 1, {})
            self.saved.append((self.clock.now, self.job.state()))
            return phase

        def ended(result):
            self.ends.append((self.clock.now, result if isinstance(result, str) else type(result)))

        self.worker.submit(work, ended)

    def run(self):
        self.clock.run(lambda: False)
        return self.ends


def test_a_piece_of_work_takes_the_time_of_its_samples_on_the_board():
    on = board()
    desk = Desk(on, 25)
    desk.submit()
    assert desk.run() == [(0.5 * 2.5, "train")]
    assert (on.seconds, on.joules) == (1.25, 4.0 * 1.25)


def test_measured_seconds_replace_counted_samples():
    on = board(MeasuredWork(7.0, 3.0))
    desk = Desk(on, 10, 10)
    desk.submit("train")
    desk.submit("evaluate")
    assert desk.run() == [(7.0, "train"), (10.0, "evaluate")]
    assert on.seconds == 10.0


def test_a_worker_does_its_pieces_of_work_one_after_the_other():
    desk = Desk(board(), 40, 60, 20)
    for _ in range(3):
        desk.submit()
    assert desk.run() == [(2.0, "train"), (5.0, "train"), (6.0, "train")]


def test_a_device_saves_its_state_when_the_work_has_ended():
    desk = Desk(board(), 40)
    desk.submit()
    assert desk.saved == []
    desk.run()
    assert desk.saved == [(2.0, {"state": 40})]


def test_work_that_is_cut_off_saves_no_state_but_its_seconds_count():
    on = board()
    desk = Desk(on, 40)
    desk.submit()
    desk.clock.call_at(1.5, desk.worker.cut_off)
    assert (desk.run(), desk.saved, on.seconds) == ([], [], 1.5)


def test_an_error_of_a_task_ends_its_piece_of_work():
    desk = Desk(board(), ValueError("no"), 20)
    desk.submit()
    desk.submit()
    assert desk.run() == [(0.0, ValueError), (1.0, "train")]


@pytest.mark.parametrize("error", [RunError("a worker was killed"), AuthorError("mine.py:3: a mistake")])
def test_a_dead_worker_process_or_a_mistake_in_a_plug_in_ends_the_run(error):
    desk = Desk(board(), error)
    desk.submit()
    with pytest.raises(type(error), match=re.escape(str(error))):
        desk.run()


def test_the_clock_advances_before_the_worker_waits_for_the_result_of_a_task():
    """Other events happen before the worker waits for the result, up to half of the shortest work so far."""
    on, waits = board(), []
    desk = Desk(on, 40, 40)
    begin = desk.host.begin

    def noted(device, task):
        wait = begin(device, task)
        return lambda: (waits.append(desk.clock.now), wait())[1]

    desk.host.begin = noted
    desk.submit()
    desk.submit()
    desk.run()
    assert waits == [0.0, 2.0 + 1.0]


def test_work_shorter_than_half_of_the_shortest_work_takes_that_half():
    on = board()
    desk = Desk(on, 40, 10, 10)
    for _ in range(3):
        desk.submit()
    assert [when for when, _ in desk.run()] == [2.0, 3.0, 3.5]
    assert on.seconds == 3.5


@pytest.mark.parametrize(
    ("sizes", "least"), [((10, 2, 5), 6), ((9, 2, 5), 0), ((10, 2, 4), 0), ((99, 9, 9), 20), ((50, 2, 5), 20)]
)
def test_the_least_work_is_taken_from_devices_with_at_most_as_many_samples(sizes, least):
    known = LeastWork()
    for seen, work in (((10, 2, 5), 12), ((10, 2, 5), 15), ((50, 2, 5), 40)):
        known.note("train", seen, work)
    assert known.samples("train", sizes) == least
    assert known.samples("evaluate", sizes) == 0


def test_the_meter_of_a_board_reads_the_joules_of_its_work_and_of_its_line():
    on, clock = board(line_watts=2.0), VirtualClock()
    meter = on.meter(clock)
    on.work(3.0)
    assert meter.read().joules == pytest.approx(12.0)
    on.line.up.send(0.0, 1_000_000)
    assert meter.read().joules == pytest.approx(12.0 + 2.0 * on.line.up.seconds)


def test_a_board_without_watts_has_no_meter():
    assert board(watts=0.0).meter(VirtualClock()) is None
