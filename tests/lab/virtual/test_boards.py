"""Tests of virtual boards: how long a piece of work takes, and how many joules."""

import random

import pytest
import torch
from torch import nn

from protofleet.lab.simulation.network import VirtualClock
from protofleet.lab.virtual.boards import BoardWorker, CountedJob, VirtualBoard
from protofleet.lab.virtual.fleet import Availability, VirtualDevice
from protofleet.lab.virtual.lines import VirtualLine
from protofleet.lab.virtual.profiles import BoardProfile, LineProfile
from protofleet.lab.virtual.worked import MeasuredWork
from protofleet.protocol.transport.base import Done


def board(work=None, watts=4.0, line_watts=0.0):
    line = LineProfile(1.0, 8.0, 8.0, watts=line_watts)
    device = VirtualDevice("pi", BoardProfile(1.0, 0.5, watts=watts), "lte", line, Availability(), work)
    return VirtualBoard(device, VirtualLine.of(line, random.Random(0)))


class TrainingJob:
    """A job that passes samples through a network, with and without a backward pass."""

    def __init__(self, trained, measured):
        self.model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        self.trained, self.measured = trained, measured

    def run(self, phase, number, received):
        for size in self.trained:
            self.model(torch.zeros(size, 2)).sum().backward()
        with torch.no_grad():
            for size in self.measured:
                self.model(torch.zeros(size, 2))
        return {}, {}


@pytest.mark.parametrize(
    ("trained", "measured", "steps"),
    [([10, 10, 5], [], 2.5), ([], [30], 1.0), ([10], [15, 15], 2.0), ([], [], 0.0)],
)
def test_a_sample_costs_its_part_of_a_step_and_a_third_without_a_backward_pass(trained, measured, steps):
    job, on = TrainingJob(trained, measured), board()
    CountedJob(job, job.model, on, batch=10).run("train", 1, {})
    assert on.seconds == pytest.approx(0.5 * steps)
    assert on.joules == pytest.approx(4.0 * 0.5 * steps)


def test_a_network_of_which_only_the_head_works_is_counted_by_its_head():
    job, on = TrainingJob([], []), board()
    counted = CountedJob(job, job.model, on, batch=10)

    def run(*args):
        job.model[2](torch.zeros(20, 3))
        return {}, {}

    job.run = run
    counted.run("train", 1, {})
    assert on.seconds == pytest.approx(0.5 * 2)


def test_measured_seconds_take_the_place_of_counted_samples():
    job, on = TrainingJob([10], []), board(MeasuredWork(7.0, 3.0))
    counted = CountedJob(job, job.model, on, batch=10)
    counted.run("train", 1, {})
    counted.run("evaluate", 2, {})
    assert on.seconds == 10.0


def test_a_worker_does_one_piece_of_work_after_the_other():
    clock, on, ends = VirtualClock(), board(), []

    def work(seconds):
        on.work(seconds)
        return seconds

    def take(item):
        if isinstance(item, Done):
            item.call()

    worker = BoardWorker(clock, take, board=on)
    for seconds in (2.0, 3.0, 0.0):
        worker.submit(lambda seconds=seconds: work(seconds), lambda result: ends.append((clock.now, result)))
    clock.run(lambda: False)
    assert ends == [(2.0, 2.0), (5.0, 3.0), (5.0, 0.0)]


def test_the_meter_of_a_board_reads_the_joules_of_its_work_and_of_its_line():
    on, clock = board(line_watts=2.0), VirtualClock()
    meter = on.meter(clock)
    on.work(3.0)
    assert meter.read().joules == pytest.approx(12.0)
    on.line.up.send(0.0, 1_000_000)
    assert meter.read().joules == pytest.approx(12.0 + 2.0 * on.line.up.seconds)


def test_a_board_without_watts_has_no_meter():
    assert board(watts=0.0).meter(VirtualClock()) is None
