"""Tests of the jobs of virtual devices: how many samples their work has, and which state they save."""

import pytest
import torch
from torch import nn

from protofleet.lab.virtual.jobs import CountedJob, JobTask


class TrainingJob:
    """A job that passes samples through a network, with and without a backward pass. Its state counts its tasks."""

    def __init__(self, trained=(), measured=(), head=()):
        self.model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        self.trained, self.measured, self.head, self.tasks = trained, measured, head, 0

    def run(self, phase, number, received):
        self.tasks += 1
        for size in self.trained:
            self.model(torch.zeros(size, 2)).sum().backward()
        with torch.no_grad():
            for size in self.measured:
                self.model(torch.zeros(size, 2))
        for size in self.head:
            self.model[2](torch.zeros(size, 3))
        return {}, {}

    def state(self):
        return {"tasks": self.tasks}

    def restore(self, state):
        self.tasks = int(state["tasks"])


def performed(job, phase="train", restored=None):
    return CountedJob(job, job.model).perform(JobTask(phase, 1, {}, restored))


@pytest.mark.parametrize(
    ("trained", "measured", "samples"),
    [([10, 10, 5], [], 25), ([], [30], 10), ([10], [15, 15], 20), ([], [], 0)],
)
def test_a_sample_without_a_backward_pass_counts_one_third(trained, measured, samples):
    assert performed(TrainingJob(trained, measured)).samples == pytest.approx(samples)


def test_work_that_uses_only_the_head_is_counted_in_full():
    assert performed(TrainingJob(head=[20])).samples == 20


def test_an_evaluation_does_not_change_the_state():
    job = TrainingJob()
    assert performed(job).state == {"tasks": 1}
    assert performed(job, "evaluate").state == {"tasks": 1}
    assert performed(job).state == {"tasks": 2}


def test_a_job_continues_from_a_restored_state():
    assert performed(TrainingJob(), restored={"tasks": 6}).state == {"tasks": 7}
