"""An audit without findings means something only if the audit finds planted errors."""

import copy
import json
from dataclasses import replace

import pytest

from tests.chaos.audit import Evidence, full_disk_in, given_in, said_in, violations
from tests.chaos.closed_phases import ClosedPhase

A, B, C = "a" * 64, "b" * 64, "c" * 64
WEIGHTS = 100


def line(number, *devices, up=None, kind="training"):
    sent = len(devices) * WEIGHTS if up is None else up
    payload, wire = (
        {"up": {"weights": sent}, "down": {}},
        {"up": {"weights": sent + 10}, "down": {"control": 5}},
    )
    return {
        "round": number, "kind": kind, "resumed": False, "attempt": 0, "participants": list(devices),
        "payload": payload, "wire": wire, "phases": [{"asked": ["x", "y"]}],
    }  # fmt: skip


@pytest.fixture
def sound():
    """Return evidence of two rounds of two devices.

    The first round was repeated, and the second was replayed after a kill.
    """
    closed = [
        ClosedPhase(1, "train", {"x": C, "y": C}),
        ClosedPhase(1, "train", {}, reopened=True),
        ClosedPhase(1, "train", {"x": A, "y": B}),
        ClosedPhase(2, "train", {"x": B}),
        ClosedPhase(3, "evaluate", {"x": C}),
    ]
    given = [closed[0], closed[2], closed[3], closed[3], closed[4]]
    said = {
        "x": {(1, "train", A), (1, "train", C), (2, "train", B), (3, "evaluate", C)},
        "y": {(1, "train", B), (1, "train", C)},
    }
    lines = [line(1, "x", "y"), line(2, "x"), line(3, "x", up=0, kind="evaluation")]
    return Evidence(2, closed, given, said, lines, copy.deepcopy(lines), weights=WEIGHTS)


def test_a_correct_run_has_no_violations(sound):
    assert violations(sound) == []


def changed(phases, at, **more):
    phases[at] = replace(phases[at], **more)


PLANTED = {
    "a round is missing": (lambda e: (e.lines.pop(1), e.copies.pop(1)), "rounds.jsonl has rounds [1, 3]"),
    "a round is written twice": (lambda e: e.lines.insert(1, e.lines[0]), "rounds.jsonl has rounds [1, 1, 2, 3]"),
    "a round is counted too late": (lambda e: e.closed.append(e.closed[2]), "counted after a later one"),
    "a phase is closed again with another device": (
        lambda e: e.closed.insert(4, replace(e.closed[3], answers={"x": B, "y": B})),
        "round 2 train counted ['x'], then ['x', 'y']",
    ),
    "a phase is closed again with another answer": (
        lambda e: e.closed.insert(4, replace(e.closed[3], answers={"x": A})), "round 2 train counted",
    ),
    "a replay counts another device": (
        lambda e: changed(e.given, 3, answers={"x": B, "y": B}), "round 2 train gave ['x', 'y'] to the server half",
    ),
    "a replay counts another answer": (
        lambda e: changed(e.given, 3, answers={"x": A}), "round 2 train gave ['x'] to the server half, and was not",
    ),
    "an answer is never counted": (
        lambda e: e.given.pop(1), "round 1 train never gave ['x', 'y'] to the server half",
    ),
    "no device sent the answer": (lambda e: e.said["x"].discard((2, "train", B)), "which never said it"),
    "a line names a device that was not counted": (
        lambda e: e.lines[1]["participants"].append("y"), "its line says ['x', 'y']",
    ),
    "an answer was sent twice": (lambda e: e.lines.__setitem__(1, line(2, "x", up=300)), "not 100 to 200"),
    "an answer was never sent": (lambda e: e.lines.__setitem__(0, line(1, "x", "y", up=100)), "not 200 to 200"),
    "a round that began again was never closed": (lambda e: e.closed.pop(2), "round 1 counted [], its line says"),
    "the copy has other bytes": (
        lambda e: e.copies[1]["wire"]["up"].__setitem__("weights", 109), "the copy of rounds.jsonl has other lines",
    ),
    "the copy lacks a line": (lambda e: e.copies.pop(), "other lines, of rounds [1, 2]"),
    "more payload than wire": (
        lambda e: e.lines[0]["wire"]["up"].__setitem__("weights", 199), "more weights bytes up than crossed",
    ),
    "a traceback": (
        lambda e: e.logs.__setitem__("x", "fine\nTraceback (most recent call last):\n  ...\nKeyError: 3"),
        "KeyError: 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_the_audit_reports_each_planted_error(sound, planted):
    plant, words = PLANTED[planted]
    plant(sound)
    found = violations(sound)
    assert any(words in violation for violation in found), found


def test_a_repeated_round_may_use_answers_to_its_earlier_attempts(sound):
    sound.lines[1] = {**line(2, "x", up=200), "attempt": 1, "phases": [{"asked": ["x"]}]}
    sound.copies[1] = sound.lines[1]
    assert violations(sound) == []


def test_an_incomplete_answer_may_be_sent_again_in_each_attempt(sound):
    for most, is_sound in ((400, True), (401, False)):
        sound.lines[1] = {**line(2, "x", up=most), "attempt": 1, "phases": [{"asked": ["x"]}]}
        sound.copies[1] = sound.lines[1]
        assert (violations(sound) == []) is is_sound
    assert "not 100 to 400" in violations(sound)[-1]


def test_an_incomplete_answer_may_be_sent_again_after_a_full_disk(sound):
    sound.lines[1] = sound.copies[1] = line(2, "x", up=250)
    assert "not 100 to 200" in violations(sound)[-1]
    assert violations(replace(sound, full_disk=frozenset({2}))) == []


def test_full_disk_in_reads_the_rounds_with_a_full_disk_from_the_log():
    finished = [f'{{"event": "round", "round": {number}, "attempt": 0}}' for number in range(1, 6)]
    full, room = (
        "ERROR the disk that holds /a is full (why)",
        "WARNING there is room again on the disk that holds /a",
    )
    log = [finished[0], full, finished[1], room, finished[2], finished[3], full, room, finished[4]]
    assert full_disk_in("\n".join(log)) == {2, 3, 5}


def test_full_disk_in_reads_only_the_rounds_of_the_named_run():
    finished = [f'{{"event": "round", "round": 1, "run": "{run}"}}' for run in ("red", "blue")]
    log = [finished[0], "ERROR red: the disk that holds /a is full (why)", finished[1]]
    assert full_disk_in("\n".join(log), "blue") == {1} and full_disk_in("\n".join(log), "red") == set()


def test_given_in_reads_only_the_answers_of_the_named_run(tmp_path):
    (log := tmp_path / "coordinator.log").write_text(
        "\n".join(
            json.dumps({"event": "counted", "round": 2, "phase": "train", "answers": {"x": name}, **run})
            for name, run in ((A, {"run": "red"}), (B, {"run": "blue"}), (C, {}))
        )
    )
    found = {run: [c.answers["x"] for c in given_in(log, run)] for run in ("red", "blue", "")}
    assert found == {"red": [A], "blue": [B], "": [C]}


def test_said_in_reads_each_sent_update_from_the_log_of_a_device():
    lines = (
        f"INFO round 2 train: sending the update {A}",
        "WARNING round 3 train: the update is refused: no",
        f"INFO round 3 mix: sending the update {B}",
    )
    assert said_in("\n".join(lines)) == {(2, "train", A), (3, "mix", B)}


def test_said_in_reads_the_sent_updates_of_one_run_from_the_log_of_several():
    lines = [
        f"INFO {run}: round 2 train: sending the update {name}" for run, name in (("red", A), ("blue", B))
    ]
    found = {run: said_in("\n".join(lines), run) for run in ("red", "blue", "")}
    assert found == {"red": {(2, "train", A)}, "blue": {(2, "train", B)}, "": set()}
