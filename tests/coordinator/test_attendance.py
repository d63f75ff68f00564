"""The log names the devices that a round waits for, at once and every minute."""

import json
import logging

import pytest

from protofleet.coordinator.attendance import AttendanceLog
from protofleet.coordinator.round.policy import Policy
from protofleet.runtime.logs import JsonFormatter

FLEET = frozenset(f"board-{i:02}" for i in range(12))


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="protofleet.coordinator")

    def since():
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    return since


def test_the_log_names_missing_devices_at_once_and_every_minute_until_the_round_begins(said):
    log = AttendanceLog(Policy(quorum=2, gather=3))
    log.say_if_due(True, frozenset(), frozenset(), FLEET, 5.0)
    assert said() == []  # the round waits for no device yet
    log.gathering(True, 5.0)
    assert log.wake_at == 5.0
    here = FLEET - {"board-00"}
    log.say_if_due(True, frozenset({"board-01"}), frozenset(), here, 5.0)
    (line,) = said()
    assert line.startswith(
        "waiting for devices: 1 of 3 are here (policy.gather is 3); not here: board-02, board-03"
    )
    assert line.endswith(" and 2 more")
    log.say_if_due(True, frozenset(), frozenset(), FLEET, 64.9)
    assert said() == []
    log.say_if_due(False, frozenset(), frozenset(), FLEET, 65.0)
    assert "0 of 2 are here (policy.quorum is 2)" in said()[0]
    log.gathering(False, 66.0)
    log.say_if_due(False, frozenset(), frozenset(), FLEET, 200.0)
    assert said() == []


def test_the_log_names_devices_without_an_answer_every_minute_and_the_time_to_the_end_of_training(said):
    log = AttendanceLog(Policy(patience_seconds=600))
    log.gathering(True, 0.0)
    for now in (0.0, 59.9, 60.0):
        log.say_who_is_left(frozenset({"board-04", "board-01"}), now)
    line = "waiting for devices that have not answered: board-01, board-04; if none of them comes within "
    assert said() == [f"{line}policy.patience_seconds = 600, the training ends"] * 2


def test_the_log_names_present_devices_that_do_not_count(said):
    log = AttendanceLog(Policy(quorum=12))
    log.gathering(True, 0.0)
    log.say_if_due(False, FLEET, frozenset({"board-04"}), FLEET, 0.0)
    assert said() == [
        "waiting for devices: 11 of 12 are here (policy.quorum is 12); unsteady, or refused in this round: board-04"
    ]


def test_the_log_gives_a_fix_if_too_few_devices_are_enrolled(said):
    log = AttendanceLog(Policy(quorum=1, gather=20))
    log.gathering(True, 0.0)
    log.say_if_due(True, FLEET, frozenset(), FLEET, 0.0)
    assert said() == [
        "waiting for devices: 12 of 20 are here (policy.gather is 20); only 12 are enrolled: lower policy.gather, or "
        "enrol more"
    ]


@pytest.mark.parametrize(
    ("quorum", "enrolled", "words"),
    [
        (1, 0, "no device is enrolled yet: the run goes on as soon as enough devices are"),
        (3, 0, "no device is enrolled yet: the run goes on as soon as enough devices are"),
        (3, 1, "only 1 is enrolled: lower policy.quorum, or enrol more"),
    ],
)
def test_the_log_suggests_a_lower_quorum_only_if_this_is_enough(said, quorum, enrolled, words):
    log = AttendanceLog(Policy(quorum=quorum))
    log.gathering(True, 0.0)
    log.say_if_due(True, frozenset(), frozenset(), frozenset(sorted(FLEET)[:enrolled]), 0.0)
    (line,) = said()
    assert line.startswith(f"waiting for devices: 0 of {quorum} are here") and line.endswith(f"; {words}")


def test_the_json_log_has_separate_keys_for_the_numbers(caplog):
    caplog.set_level(logging.INFO, logger="protofleet.coordinator")
    log = AttendanceLog(Policy(quorum=12))
    log.gathering(True, 0.0)
    log.say_if_due(False, frozenset(), frozenset(), FLEET, 0.0)
    found = json.loads(JsonFormatter().format(caplog.records[0]))
    assert (found["event"], found["here"], found["needed"], found["level"]) == ("waiting", 0, 12, "INFO")
    assert found["missing"][0] == "board-00" and found["time"].endswith("+00:00")
