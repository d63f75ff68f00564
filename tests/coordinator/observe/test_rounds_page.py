"""docs/rounds.md has each key that a run writes, with the type that it has in the code."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from protofleet.coordinator.observe.record import (
    Accuracy,
    EvaluationRecord,
    PhaseRecord,
    RoundRecord,
    Summary,
)
from protofleet.coordinator.observe.rounds_file import UNSEALED

PAGE = (Path(__file__).parents[3] / "docs" / "rounds.md").read_text()
PLAIN = {int: "int", float: "number", str: "string", bool: "bool", Any: "any"}
NAMED = {PhaseRecord: "phase", EvaluationRecord: "evaluation", Accuracy: "accuracy"}
TABLES = dict(
    zip(
        (RoundRecord, PhaseRecord, EvaluationRecord, Summary, Accuracy),
        re.split(r"(?m)^\| key ", PAGE)[1:],
        strict=True,
    )
)


def rows(cls):
    """Return key -> (type, unit, version since which it exists)."""
    cells = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"(?m)^\| `.*$", TABLES[cls])
    )
    return {key.strip("`"): (kind, unit, since) for key, kind, unit, _, since in cells}


def shape(kind):
    """Return a type of the page with "string" in place of other names, and objects without their key type.

    The page may use any word for the keys of an object and for the names of devices.
    """
    kind = re.sub(r"\b(?!int\b|number\b|bool\b|any\b|phase\b|evaluation\b|accuracy\b)\w+", "string", kind)
    return kind.replace("{string: ", "{")


def written(hint):
    if hint in PLAIN or hint in NAMED:
        return {**PLAIN, **NAMED}[hint]
    match get_origin(hint), get_args(hint):
        case (_, (first, *_)) if get_origin(hint) is Annotated:
            return written(first)
        case (origin, (first, *_)) if origin in (list, tuple):
            return f"[{written(first)}]"
        case (origin, (_, value)) if origin is dict:
            return f"{{{written(value)}}}"
        case (origin, _) if origin is Literal:
            return "string"
        case (_, (value, none)) if none is type(None) or get_origin(hint) is Union:
            return written(value)
    return "{{int}}"  # Ways: up and down


@pytest.mark.parametrize("cls", TABLES)
def test_the_page_has_each_key_in_its_order_with_its_type(cls):
    hints = get_type_hints(cls, include_extras=True)
    assert list(rows(cls)) == list(hints)
    assert {key: shape(kind) for key, (kind, _, _) in rows(cls).items()} == {
        key: written(hint) for key, hint in hints.items()
    }


def test_the_page_states_the_version_since_which_a_line_has_a_key():
    assert {key for key, (_, _, since) in rows(RoundRecord).items() if since == "0.1.0"} == UNSEALED


def test_each_number_on_the_page_has_a_unit():
    for cls in TABLES:
        for key, (kind, unit, _) in rows(cls).items():
            counts = (
                key in ("round", "attempt", "rounds", "rounds_done", "seed", "figures") or "int" not in kind
            )
            assert unit or (counts and ("number" not in kind or key == "figures")), f"{key} has no unit"
