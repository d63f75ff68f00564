"""The hellos of present devices decide if a run that was restored from a backup may continue."""

import pytest

from protofleet.coordinator.devices.answered_rounds import AnsweredRounds, behind_words
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.forms import RUNS
from protofleet.protocol.wire.messages import Hello


def said(rounds, device, answered, run="red", boot=1, can=(RUNS,)):
    hello = Hello(device, 3, 10, can=can, answered=answered)
    rounds.hello_received(Received(device, hello, run, 1, boot=boot), hello)


def test_a_restarted_device_must_report_its_answered_rounds_again():
    rounds = AnsweredRounds()
    said(rounds, "a", 5)
    said(rounds, "a", 0, run="blue")
    assert rounds.of("red") == {"a": 5} and rounds.of("blue") == {"a": 0} and rounds.has_any("a", ("red",))
    said(rounds, "a", 0, run="blue", boot=2)
    assert rounds.of("red") == {"a": 0} and not rounds.has_any("a", ("red",))


def test_devices_that_left_and_devices_of_one_run_report_no_answered_rounds():
    rounds = AnsweredRounds()
    said(rounds, "gone", 5)
    rounds.left("gone")
    said(rounds, "old", 5, can=())
    said(rounds, "new", 0, run="")
    assert rounds.of("red") == {"new": 0} and not rounds.has_any("new", ("red", ""))


@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ({}, "0 present devices say"),
        ({"a": 2}, "1 present devices say"),
        ({"a": 2, "b": 3}, "1 present devices say"),
        ({"a": 3, "b": 4}, "2 of 2 present devices (a, b) have answered up to round 4"),
        ({"a": 2, "b": 2, "c": 3, "d": 3}, "2 of 4 present devices (c, d)"),
        ({"a": 2, "b": 1}, ""),
        ({"a": 2, "b": 0, "c": 9}, ""),
    ],
)
def test_a_run_continues_only_if_a_quorum_is_not_ahead_and_less_than_a_quorum_is_ahead(rounds, words):
    found = behind_words("red", 2, rounds, 2)
    assert found.startswith(words) and bool(found) == bool(words)
    assert not found or "`protofleet resume red --new-generation`" in found
