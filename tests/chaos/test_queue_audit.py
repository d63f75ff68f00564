"""The checks of a queue find each kind of fault, and report nothing in a correct history."""

from dataclasses import replace

import pytest

from protofleet.coordinator.queue.states import QueuedRun
from tests.chaos.queue_audit import RowsCheck, Told, one_coordinator, queue_violations


def row(state="running", revision=1, over=False, reason="why"):
    return {"state": state, "revision": revision, "over": over, "reason": reason}


def check_of(*steps):
    """Return the problems of a history; a step is a command with its result, or rows with the rounds of red."""
    check = RowsCheck()
    for step in steps:
        if isinstance(step, Told):
            check.giving(step.verb, step.run)
            check.told(step)
        else:
            state, rounds = step
            check.seen({"red": state} if state else {}, {"red": rounds})
    return check.problems


SUBMIT, PAUSE, RESUME = (Told(verb, "red", "done") for verb in ("submit", "pause", "resume"))
PAUSED = [SUBMIT, (row(), 3), PAUSE, (row("pausing", 2), 3), (row("paused", 3), 4)]


def test_a_history_with_a_pause_and_an_end_has_no_problems():
    assert check_of(
        *PAUSED, (row("paused", 3), 4), RESUME, (row("submitted", 4), 4), (row("running", 5), 5),
        PAUSE, (row("finished", 6, over=True), 9),
    ) == []  # fmt: skip


HISTORIES = {
    "a submitted run is lost": ([SUBMIT, (row(), 1), (None, 1)], "red was submitted, and is not in the queue"),
    "a row goes back": ([SUBMIT, (row(revision=4), 1), (row(revision=3), 1)], "gone back from revision 4 to 3"),
    "a run that was over goes on": (
        [(row("finished", 4, over=True), 1), (row("finished", 5), 1)], "red was over, and is finished again",
    ),
    "a run fails": ([(row("failed", reason="no room"), 1)], "red is failed: no room"),
    "a pause is lost": ([*PAUSED, (row("running", 4), 4)], "red is running, although it was paused"),
    "a round ends during a pause": ([*PAUSED, (row("paused", 3), 5)], "round 5 while it was paused after round 4"),
    "a run is paused without a command": ([(row("paused", reason="a file"), 1)], "nobody has paused it: a file"),
    "a run stays paused": ([*PAUSED, RESUME, (row("paused", 4), 4)], "nobody has paused it"),
}  # fmt: skip


@pytest.mark.parametrize("planted", HISTORIES)
def test_the_check_reports_each_fault_in_the_rows(planted):
    steps, words = HISTORIES[planted]
    found = check_of(*steps)
    assert len(found) == 1 and words in found[0], found


FINISHED = QueuedRun("red", 1, "finished", "why", 5, 9, 0, "", "", "ann", 1, started=2, ended=3, closed=1)
TOLD = [SUBMIT, PAUSE, RESUME]


def test_the_file_of_a_correct_queue_has_no_violations():
    again = replace(SUBMIT, verdict="refused")
    assert queue_violations({"red": FINISHED}, [SUBMIT, again, PAUSE, RESUME], TOLD) == []


FILES = {
    "a run is missing": ({}, TOLD, "red is missing in the file"),
    "a run is not closed": ({"red": replace(FINISHED, closed=0)}, TOLD, "red is finished in the file"),
    "a run is stopped": ({"red": replace(FINISHED, state="stopped")}, TOLD, "red is stopped in the file"),
    "a command is missing": ({"red": FINISHED}, [SUBMIT, PAUSE], "has the commands ['pause red: done'], the"),
    "a command is stored twice": ({"red": FINISHED}, [*TOLD, RESUME], "'resume red: done', 'resume red: done'"),
    "a submission is stored twice": ({"red": FINISHED}, [SUBMIT, *TOLD], "the submissions ['red', 'red']"),
    "a result has changed": (
        {"red": FINISHED}, [SUBMIT, replace(PAUSE, verdict="refused"), RESUME], "'pause red: refused'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("planted", FILES)
def test_the_audit_reports_each_fault_in_the_queue_file(planted):
    rows, kept, words = FILES[planted]
    found = queue_violations(rows, kept, TOLD)
    assert any(words in violation for violation in found), found


@pytest.mark.parametrize(
    "taken",
    [
        "ERROR another coordinator, of epoch 7, has taken over /a, so this coordinator, of epoch 6, stops",
        "ERROR a later coordinator conducts this federation: it has epoch 7 and run red, this one has epoch 6",
    ],
)
def test_the_audit_finds_a_takeover_by_another_coordinator_in_the_log(taken):
    refused = "protofleet: another coordinator (pid 7) uses /a; end it"
    assert list(one_coordinator(refused)) == []
    assert list(one_coordinator(f"{refused}\n{taken}\n{taken}")) == [
        f"two coordinators conducted the queue: {taken}"
    ]
