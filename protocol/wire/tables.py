"""Convert the tables in messages of minor version 1 to msgpack's types and back, strictly.

The tables describe a run, the arrays of an update, and the coordinator's round status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from protofleet.protocol.wire.messages import MOST_NAMED, MOST_RUNS, About, ArraySpec, RoundStatus
from protofleet.protocol.wire.names import valid_name

MAX_FORMS: Final = 16  # largest number of names of message forms
MAX_FORM: Final = 32  # largest number of bytes in the name of a form
MAX_NAMES: Final = 4096  # largest number of class names
MAX_LETTERS: Final = 64  # largest number of letters in the name of a class or metric
MAX_WANTED: Final = 4096  # largest number of rows of wanted arrays
MAX_RULES: Final = 8
MAX_CAPACITY: Final = 256  # largest number of further runs that a hello may state
SHORT_NAME: Final = 4  # number of bytes to which the hash of a device's name is cut

# Names of msgpack's types.
TYPES: Final[dict[type, str]] = {
    bool: "bool",
    str: "str",
    bytes: "bin",
    list: "array",
    dict: "map",
}

T = TypeVar("T")


def typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is no {TYPES[kind]}")
    return value


def whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"{str(value)[:40]!r} is not a whole number of 0 or more")
    return value


def number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{str(value)[:40]!r} is not a number")
    return float(value)  # type: ignore[arg-type]


def forms(value: object) -> tuple[str, ...]:
    """Return the names of message forms. The module `forms` lists the known forms."""
    return _texts(value, MAX_FORMS, MAX_FORM)


def class_names(value: object) -> tuple[str, ...]:
    """Return the names of classes; each must be printable, because log lines show it."""
    found = _texts(value, MAX_NAMES, MAX_LETTERS)
    if invalid := [name for name in found if not name or not name.isprintable()]:
        raise TypeError(f"{invalid[0][:40]!r} is no name of a class")
    return found


def run_name(value: object) -> str:
    """Return the name of a run, or "" if no run is named."""
    return valid_name(name) if (name := typed(value, str)) else ""


def run_names(value: object) -> tuple[str, ...]:
    names = tuple(valid_name(typed(name, str)) for name in typed(value, list))
    if len(names) > MOST_RUNS:
        raise TypeError(f"{len(names)} active runs are named, but the limit is {MOST_RUNS}")
    return names


def within(value: object, most: int) -> int:
    """Return the whole number, or raise TypeError if it is larger than `most`."""
    if (found := whole(value)) > most:
        raise TypeError(f"{found} is larger than {most}")
    return found


def about_fields(about: About) -> dict[str, object]:
    """Return the fields of `about` that are set."""
    values = {
        "can": list(about.can), "uses": list(about.uses), "names": list(about.names), "embedding": about.embedding,
        "metrics": list(about.metrics), "counts": about.counts, "codec": about.codec,
    }  # fmt: skip
    return {key: value for key, value in values.items() if value}


def read_about(value: object) -> About:
    table = typed(value, dict)
    return About(
        can=forms(table.get("can", [])),
        uses=forms(table.get("uses", [])),
        names=class_names(table.get("names", [])),
        embedding=whole(table.get("embedding", 0)),
        metrics=_texts(table.get("metrics", []), MAX_NAMES, MAX_LETTERS),
        counts=typed(table.get("counts", False), bool),
        codec=typed(table.get("codec", b""), bytes),
    )


def wanted_rows(rows: tuple[ArraySpec, ...]) -> list[list[object]]:
    return [_row(row) for row in rows]


def _row(row: ArraySpec) -> list[object]:
    shape = None if row.shape is None else list(row.shape)
    return [
        row.name, row.dtype, shape, row.most, row.low, row.high, row.norm, row.finite, list(row.rules)
    ]  # fmt: skip


def read_wanted(value: object) -> tuple[ArraySpec, ...]:
    rows = typed(value, list)
    if len(rows) > MAX_WANTED:
        raise TypeError(f"{len(rows)} rows of wanted arrays were sent, but the limit is {MAX_WANTED}")
    return tuple(_wanted(typed(row, list)) for row in rows)


def _wanted(row: list[object]) -> ArraySpec:
    name, dtype, shape, most, low, high, norm, finite, rules, *_ = row
    return ArraySpec(
        typed(name, str), _maybe(dtype, lambda v: typed(v, str)), _maybe(shape, _shape), _maybe(most, whole),
        _maybe(low, number), _maybe(high, number), _maybe(norm, number), typed(finite, bool),
        _texts(rules, MAX_RULES, MAX_LETTERS),
    )  # fmt: skip


def _shape(value: object) -> tuple[int | str, ...]:
    return tuple(dim if isinstance(dim, str) else whole(dim) for dim in typed(value, list))


def now_fields(now: RoundStatus) -> dict[str, object]:
    waits = "all" if now.waits is None else b"".join(now.waits)
    return {"round": now.round, "phase": now.phase, "attempt": now.attempt, "waits": waits}


def read_now(value: object) -> RoundStatus:
    table = typed(value, dict)
    waits = table["waits"]
    if waits != "all":
        packed = typed(waits, bytes)
        if len(packed) % SHORT_NAME or len(packed) > MOST_NAMED * SHORT_NAME:
            raise TypeError(
                f"`waits` has {len(packed)} bytes; it may contain at most {MOST_NAMED} names of 4 bytes each"
            )
        waits = tuple(packed[i : i + SHORT_NAME] for i in range(0, len(packed), SHORT_NAME))
    return RoundStatus(
        whole(table["round"]),
        typed(table["phase"], str),
        whole(table["attempt"]),
        None if waits == "all" else waits,
    )


def _texts(value: object, most: int, letters: int) -> tuple[str, ...]:
    found = tuple(typed(text, str) for text in typed(value, list))
    if len(found) > most or any(len(text.encode()) > 4 * letters or len(text) > letters for text in found):
        raise TypeError(
            f"the list has {len(found)} texts; at most {most} are allowed, each of at most {letters} letters"
        )
    return found


def _maybe(value: object, read: Callable[[object], T]) -> T | None:
    return None if value is None else read(value)
