"""Tests of the messages that the simulator requires from each process."""

import pytest

from protofleet.protocol.wire.messages import Hello, Receipt, Task, Update, Welcome
from tests.simulator.due import Due
from tests.simulator.promises import BrokenPromise


@pytest.fixture
def coordinator():
    """Return the state of a coordinator that has sent a task to one device and then received a hello of it."""
    due = Due("coordinator", epoch=1)
    due.said("d", Task(1, "train", None, 20.0), 0.0)
    due.heard("d", Hello("d", 2, 10), 1, 1.0)
    return due


def test_a_coordinator_that_waits_for_a_device_must_answer_its_hello(coordinator):
    with pytest.raises(BrokenPromise, match=r"waits for answers of \['d'\]"):
        coordinator.look(1.0, 1, {"d", "e"})


def test_a_coordinator_that_does_not_wait_for_a_device_need_not_answer_its_hello(coordinator):
    coordinator.look(1.0, 1, {"e"})


def test_the_pause_before_a_repeated_update_follows_the_time_of_the_last_receipt():
    device, answer = Due("d"), Update("d", 1, "train", 5)
    device.heard("coordinator", Welcome(b"{}"), 1, 0.0)
    for now in (0.0, 5.0, 15.0):
        device.said("coordinator", answer, now)
    device.heard("coordinator", Receipt(1, "train", "late"), 1, 16.0)
    device.said("coordinator", answer, 40.0)  # The round has begun again.
    device.look(99.0, 1, ())
    with pytest.raises(BrokenPromise, match="has no receipt, and was said 64.0 s ago"):
        device.look(104.0, 1, ())
