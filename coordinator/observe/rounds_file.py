"""Lines of rounds.jsonl and of its copy: each carries a seal, since a flipped bit in a number makes no bad JSON."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.observe.record import believed_round
from protofleet.coordinator.spool.index import row_checksum

log = logging.getLogger("protofleet.coordinator")

UNSEALED: Final = frozenset(  # what lines could say before they carried seals
    {
        "round",
        "attempt",
        "kind",
        "resumed",
        "seconds",
        "phases",
        "participants",
        "late",
        "dropped",
        "payload",
        "wire",
    }
    | {"fedavg", "accuracy", "validation", "loss", "pooled", "figures", "rejected"}
)


def copy_of(path: Path) -> Path:
    return path.with_suffix(f".copy{path.suffix}")


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """What the whole lines of a rounds.jsonl say; torn and damaged ones are left out."""
    return [table for _, table in whole_lines(path)[0]]


def sealed_line(table: Mapping[str, Any]) -> str:
    text = json.dumps(table, allow_nan=False)
    return json.dumps({**table, "seal": row_checksum("round", text).hex()}, allow_nan=False) + "\n"


def whole_lines(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], int]:
    """Each as it stands there, and what it says; and how many say nothing that can be believed."""
    try:
        lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except FileNotFoundError:
        return [], 0
    whole = [(line, table) for line in lines if (table := whole_record(line))]
    return whole, len(lines) - len(whole)


def whole_record(text: str | bytes) -> dict[str, Any] | None:
    """What a line says. Earlier versions gave it no seal."""
    try:
        table = json.loads(text)
        return finite(_believed(table)) if isinstance(table, dict) else None
    except (ValueError, RecursionError):
        return None


def _believed(table: dict[str, Any]) -> dict[str, Any] | None:
    sealed = table.pop("seal", None)
    if sealed is None:
        return believed_round(table) if table.keys() <= UNSEALED else None
    return table if sealed == row_checksum("round", json.dumps(table)).hex() else None


def finite(value: Any) -> Any:
    """Without the numbers that are none, which earlier versions wrote where a device had measured them."""
    match value:
        case dict():
            return {key: finite(inner) for key, inner in value.items() if not _is_odd(inner)}
        case list():
            return [finite(inner) for inner in value if not _is_odd(inner)]
    return value


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def restored(path: Path, until: int) -> bytes:
    """The whole lines, in order; those that are missing of the rounds before `until` come from the copy."""
    lines, copies = (
        {table["round"]: line for line, table in whole_lines(p)[0]} for p in (path, copy_of(path))
    )
    missing = [number for number in range(1, until) if number not in lines]
    found = {number: copies[number] for number in missing if number in copies}
    if found:
        log.error("%s lacked the lines of rounds %s; they are taken from its copy", path, sorted(found))
    if lost := [number for number in missing if number not in found]:
        log.error("%s lacks the lines of rounds %s, and so does its copy", path, lost)
    return b"".join(line + b"\n" for _, line in sorted((lines | found).items()))
