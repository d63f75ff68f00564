"""What the simulator holds to be owed."""

import pytest

from protofleet.protocol.wire.messages import Hello, Task
from tests.simulator.due import Due
from tests.simulator.promises import BrokenPromise


@pytest.fixture
def coordinator():
    """It has asked one device, and has heard a hello of that one since."""
    due = Due("coordinator", epoch=1)
    due.said("d", Task(1, "train", None, 20.0), 0.0)
    due.heard("d", Hello("d", 2, 10), 1, 1.0)
    return due


def test_a_coordinator_that_waits_for_a_device_owes_a_word_to_its_hello(coordinator):
    with pytest.raises(BrokenPromise, match=r"waits for answers of \['d'\]"):
        coordinator.look(1.0, 1, {"d", "e"})


def test_a_task_that_was_said_after_its_phase_had_ended_is_owed_to_nobody(coordinator):
    coordinator.look(1.0, 1, {"e"})
