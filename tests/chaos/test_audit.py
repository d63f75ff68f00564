"""An audit that finds nothing says something only if it finds what is there."""

from dataclasses import replace

import pytest

from tests.chaos.audit import Counted, Evidence, said_in, violations

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
    """Two rounds of two devices; the first began again, the second was replayed after a kill."""
    counted = [
        Counted(1, "train", {"x": C, "y": C}),
        Counted(1, "", {}, again=True),
        Counted(1, "train", {"x": A, "y": B}),
        Counted(2, "train", {"x": B}),
        Counted(2, "train", {"x": B}),
        Counted(3, "evaluate", {"x": C}),
    ]
    said = {
        "x": {(1, "train", A), (1, "train", C), (2, "train", B), (3, "evaluate", C)},
        "y": {(1, "train", B), (1, "train", C)},
    }
    lines = [line(1, "x", "y"), line(2, "x"), line(3, "x", up=0, kind="evaluation")]
    return Evidence(2, counted, said, lines, {1: 215, 2: 115, 3: 15}, weights=WEIGHTS)


def test_a_sound_run_has_no_violation(sound):
    assert violations(sound) == []


def changed(e, at, **more):
    return [replace(c, **more) if i == at else c for i, c in enumerate(e.counted)]


PLANTED = {
    "a round is missing": (lambda e: e.lines.pop(1), "rounds.jsonl has rounds [1, 3]"),
    "a round stands there twice": (lambda e: e.lines.insert(1, e.lines[0]), "rounds.jsonl has rounds [1, 1, 2, 3]"),
    "an older round is counted later": (lambda e: e.counted.append(e.counted[2]), "counted after a later one"),
    "a replay counts another device": (
        lambda e: setattr(e, "counted", changed(e, 4, answers={"x": B, "y": B})),
        "round 2 train counted ['x'], then ['x', 'y']",
    ),
    "a replay counts another answer": (
        lambda e: setattr(e, "counted", changed(e, 4, answers={"x": A})), "round 2 train counted",
    ),
    "an answer that nobody made": (lambda e: e.said["x"].discard((2, "train", B)), "which never said it"),
    "a line names somebody who was not counted": (
        lambda e: e.lines[1]["participants"].append("y"), "its line says ['x', 'y']",
    ),
    "an answer crossed twice": (lambda e: e.lines.__setitem__(1, line(2, "x", up=300)), "not 100 to 200"),
    "an answer never crossed": (lambda e: e.lines.__setitem__(0, line(1, "x", "y", up=100)), "not 200 to 200"),
    "the ledger has other bytes": (lambda e: e.ledger_bytes.__setitem__(2, 114), "115 bytes in its line, 114 in"),
    "more payload than wire": (
        lambda e: e.lines[0]["wire"]["up"].__setitem__("weights", 199), "more weights bytes up than crossed",
    ),
    "a traceback": (
        lambda e: e.logs.__setitem__("x", "fine\nTraceback (most recent call last):\n  ...\nKeyError: 3"),
        "KeyError: 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(sound, planted):
    plant, words = PLANTED[planted]
    plant(sound)
    found = violations(sound)
    assert any(words in violation for violation in found), found


def test_a_round_that_began_again_may_have_answers_of_those_it_asked_before(sound):
    sound.lines[1] = {**line(2, "x", up=200), "attempt": 1, "phases": [{"asked": ["x"]}]}
    sound.ledger_bytes[2] = 215
    assert violations(sound) == []
    sound.lines[1] = {**line(2, "x", up=300), "attempt": 1, "phases": [{"asked": ["x"]}]}
    assert "not 100 to 200" in violations(sound)[-1]


def test_rounds_that_a_full_ledger_could_not_take_are_not_held_against_it(sound):
    sound.counted = [c for c in sound.counted if c.round != 2]
    sound.ledger_bytes.pop(2)
    assert violations(sound)
    assert violations(replace(sound, gaps=2)) == []


def test_a_devices_log_says_what_it_said():
    lines = (
        f"INFO round 2 train: answer {A}",
        "WARNING round 3 train refused: no",
        f"INFO round 3 mix: answer {B}",
    )
    assert said_in("\n".join(lines)) == {(2, "train", A), (3, "mix", B)}
