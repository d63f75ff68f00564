"""A party that must end while one of its threads computes ends in order, without a core dump."""

from __future__ import annotations

import signal

from protofleet.coordinator.round.policy import Policy
from protofleet.edge_client.host.status_file import read_status
from tests.hostile.federation import Federation

LONG = 1000  # Epochs; they take longer than the test.


def test_a_device_that_gets_sigterm_during_its_training_ends_in_order(tmp_path):
    with Federation(tmp_path, "one", policy=Policy(quorum=1)) as f:
        f.coordinator(method={"name": "fedavg", "lr": 0.02, "epochs": LONG})
        status = tmp_path / "status.json"
        device = f.device("one", status=str(status))
        f.wait_until(lambda: (found := read_status(status)) and found.working, "the device to train")
        device.say(signal.SIGTERM)
        assert f.wait_for_end(device) == 128 + signal.SIGTERM, f.log_of(device)
        assert f.log_of(device).splitlines()[-1] == "protofleet: ended in good order by SIGTERM"


SAYS_WHEN_IT_TRAINS = """
from pathlib import Path
from protofleet.methods import fedlsa
cost, steps = fedlsa.anchor_cross_entropy, []
def said(*given):
    steps.append(given)
    if len(steps) == 100:
        Path({!r}).touch()
    return cost(*given)
fedlsa.anchor_cross_entropy = said
"""


def test_a_coordinator_that_gets_sigterm_during_its_training_ends_in_order(tmp_path):
    with Federation(tmp_path, "one", policy=Policy(quorum=1)) as f:
        trains = tmp_path / "trains"
        coordinator = f.coordinator(
            planted=SAYS_WHEN_IT_TRAINS.format(str(trains)),
            method={"name": "fedlsa", "server_epochs": 100 * LONG},
        )
        f.raw("one")
        f.wait_until(trains.exists, "the anchors to be trained")
        coordinator.say(signal.SIGTERM)
        assert f.wait_for_end(coordinator) == 128 + signal.SIGTERM, f.log_of(coordinator)
        assert f.log_of(coordinator).splitlines()[-1] == "protofleet: ended in good order by SIGTERM"


FAILS_WHEN_IT_TRAINS = """
from protofleet.coordinator.service import CoordinatorService
at_once = CoordinatorService.take
def fails(self, item, now):
    if len(steps) >= 100:  # and not before the file is there
        raise RuntimeError("a fault of our own")
    at_once(self, item, now)
CoordinatorService.take = fails
"""


def test_an_internal_error_is_logged_without_a_core_dump_while_a_thread_computes(tmp_path):
    with Federation(tmp_path, "one", "two", policy=Policy(quorum=1)) as f:
        trains = tmp_path / "trains"
        coordinator = f.coordinator(
            planted=SAYS_WHEN_IT_TRAINS.format(str(trains)) + FAILS_WHEN_IT_TRAINS,
            method={"name": "fedlsa", "server_epochs": 100 * LONG},
        )
        f.raw("one")
        f.wait_until(trains.exists, "the anchors to be trained")
        f.raw("two")
        assert f.wait_for_end(coordinator) == 1, f.log_of(coordinator)
        assert f.log_of(coordinator).splitlines()[-1].strip() == "RuntimeError: a fault of our own"


def test_a_bye_with_the_reason_finished_before_the_end_of_the_run_is_counted_as_other(tmp_path):
    with Federation(tmp_path, "one", "two", rounds=1, policy=Policy(quorum=2, gather=2)) as f:
        coordinator = f.coordinator()
        f.raw("one", lambda task: None)
        two = f.raw("two", lambda task: None)
        two.wait("task")
        two.say("bye", {"reason": "finished"})
        series = 'protofleet_device_farewells_total{reason="%s"}'
        f.wait_until(lambda: f.metrics()[series % "other"], "its bye to be counted")
        assert f.metrics()[series % "finished"] == 0 and "two leaves: finished" in f.log_of(coordinator)
