"""The hellos of present devices say whether a run of a backup may go on."""

import pytest

from protofleet.coordinator.devices.answered_rounds import AnsweredRounds, behind_words
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.forms import RUNS
from protofleet.protocol.wire.messages import Hello


def said(rounds, device, answered, run="red", boot=1, can=(RUNS,)):
    hello = Hello(device, 3, 10, can=can, answered=answered)
    rounds.hello_received(Received(device, hello, run, 1, boot=boot), hello)


def test_a_device_that_was_started_again_must_say_anew_what_it_has_answered():
    rounds = AnsweredRounds()
    said(rounds, "a", 5)
    said(rounds, "a", 0, run="blue")
    assert rounds.of("red") == {"a": 5} and rounds.of("blue") == {"a": 0} and rounds.has_any("a", ("red",))
    said(rounds, "a", 0, run="blue", boot=2)
    assert rounds.of("red") == {"a": 0} and not rounds.has_any("a", ("red",))


def test_a_device_that_left_and_a_device_of_one_run_say_nothing():
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
def test_a_run_goes_on_if_a_quorum_is_not_ahead_of_it_and_no_quorum_is(rounds, words):
    found = behind_words("red", 2, rounds, 2)
    assert found.startswith(words) and bool(found) == bool(words)
    assert not found or "`protofleet resume red --new-generation`" in found
