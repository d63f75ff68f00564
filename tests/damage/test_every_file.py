"""One damaged file leads to the same bits or a clear stop. `python -m tests.damage` tries all damages."""

import random
import re

import pytest

from tests.damage.files import (
    DAMAGE,
    FEWER,
    METHODS,
    OTHER,
    SAME,
    STOPPED,
    Case,
    every_case,
    every_pair,
    files,
    moments,
    verdict,
)
from tests.support.few_methods import few

FOUND = [  # Cases that the whole enumeration once found: other bits or a lost line, without a message.
    Case("fedpall", "a round has just begun", "device-1/device.json 1", "removed"),
    Case("fedpall", "a round has just begun", "device-1/device.json 1", "flipped at 30%"),
    Case("fedpall", "the device has answered", "coordinator/rounds.jsonl 1", "emptied"),
    Case("fedpall", "the device has answered", "coordinator/rounds.jsonl 1", "removed"),
    Case(
        "fedpall",
        "a round has just begun",
        "device-1/device.json 1",
        "removed",
        "device-1/device.copy.json 1",
    ),
    Case(
        "fedpall", "its answer is in", "device-1/objects/*.body 2", "cut in half", "device-1/objects/*.body 3"
    ),
    Case("fedpall", "its answer is in", "device-1/objects/*.body 2", "removed", "device-1/objects/*.body 4"),
]


@pytest.mark.parametrize("case", few(FOUND, 3), ids=str)
def test_damage_that_once_changed_a_run_in_silence_does_so_no_more(case):
    assert verdict(case)[0] != OTHER


@pytest.mark.parametrize("damage", few(DAMAGE, 4))
def test_a_line_of_rounds_jsonl_is_lost_only_if_its_copy_is_damaged_too(damage):
    lines, copy = "coordinator/rounds.jsonl 1", "coordinator/rounds.copy.jsonl 1"
    moment = "a round has just begun"
    assert verdict(Case("fedavg", moment, lines, damage))[0] == SAME
    assert verdict(Case("fedavg", moment, copy, damage))[0] == SAME
    if damage != "cut by a byte":  # A cut by a byte leaves the line whole.
        assert verdict(Case("fedavg", moment, lines, damage, copy))[0] == FEWER


@pytest.mark.slow
def test_damaged_states_of_a_device_do_not_change_a_run_in_silence():
    moment = "a round has just begun"
    states = [name for name, _ in files("fedpall", moment) if name.startswith("device-1/objects")]
    assert states
    for name in states:
        result, words = verdict(Case("fedpall", moment, name, "cut in half"))
        assert result != OTHER, (name, words)


@pytest.mark.parametrize(
    "method", [m if m == "fedavg" else pytest.param(m, marks=pytest.mark.slow) for m in METHODS]
)
def test_no_damaged_file_and_no_damaged_pair_changes_a_run_in_silence(method):
    dice = random.Random(method)
    pairs = dice.sample(list(every_pair((method,))), 4)
    for case in (*dice.sample(list(every_case((method,))), 6), *pairs):
        result, words = verdict(case)
        assert result != OTHER, (case, words)
        assert result != STOPPED or ("\n" not in words and "put" in words), (case, words)


def test_damage_is_tried_on_each_kind_of_file_that_a_party_keeps():
    """A kind that is missing here is new, or no moment has a file of this kind any longer."""
    found = {name.rsplit(" ", 1)[0] for moment in moments("fedpall") for name, _ in files("fedpall", moment)}
    assert {re.sub(r"(?<=updates/)device-\d|(?<=answers/)\d+", "*", name) for name in found} == {
        "coordinator/spool.sqlite", "coordinator/spool.sqlite-wal",
        "coordinator/spool.copy.sqlite", "coordinator/snapshots/*.body", "coordinator/answers/*.log",
        "coordinator/broadcasts/*.body", "coordinator/updates/*/*.body", "coordinator/updates/*/*.part",
        "coordinator/rounds.jsonl", "coordinator/rounds.copy.jsonl",
        "device-1/device.json", "device-1/device.copy.json", "device-1/device.copy-2.json",
        "device-1/device.previous.json", "device-1/heard.json", "device-1/holders.json", "device-1/objects/*.body",
    }  # fmt: skip
