"""The file rounds.jsonl and its copy, with one sealed line for each round.

Without a seal, a flipped bit in a number would not be noticed, because the line is still valid JSON.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.observe.record import RoundRecord, believed_round
from protofleet.coordinator.spool.index import row_checksum
from protofleet.protocol.storage.disk import Disk, is_full

log = logging.getLogger("protofleet.coordinator")

# The fields of a line from an earlier version, in which lines had no seals.
UNSEALED: Final = frozenset({
    "round", "attempt", "kind", "resumed", "seconds", "phases", "participants", "late", "dropped", "payload", "wire",
    "fedavg", "accuracy", "validation", "loss", "pooled", "figures", "rejected",
})  # fmt: skip


class RoundsFile:
    """A sink of the journal that appends the record of each round. A replayed round is not written again."""

    def __init__(self, path: Path, disk: Disk | None = None, until: int = 0) -> None:
        """Open the file and repair it. Each round before `until` must have a line."""
        self._path, self._copy, self._disk = path, copy_of(path), disk or Disk()
        # Records that are not written yet, because the disk had no room.
        self._unwritten: list[dict[str, Any]] = []
        self._mend(until)
        found = self.records
        self.last = found[-1]["round"] if found else 0

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return all records.

        They are read from the file each time. In memory they would need 9 kB for each round.
        """
        return [*read_rounds(self._path), *self._unwritten]

    def entry(self, what: str, details: Mapping[str, Any]) -> None:
        """Try again to write records that did not fit on the disk. The entry itself is not stored."""
        if self._unwritten:
            self._write()

    def round_ended(self, record: RoundRecord) -> None:
        if self.last >= record.round:
            return
        self.last = record.round
        self._unwritten.append(asdict(record))
        self._write()

    def _write(self) -> None:
        """Write the records into both files, or into neither file if the disk is full."""
        text = "".join(map(sealed_line, self._unwritten))
        before = {path: _size(path) for path in (self._path, self._copy)}
        try:
            self._append(self._path, text)
            self._append(self._copy, text, durable=False)  # The copy is used if the file is damaged later.
        except OSError as error:
            if not is_full(error):
                raise
            for path, size in before.items():
                if path.exists():
                    os.truncate(path, size)
            log.error(
                "could not write %s: %s; the coordinator tries again at the next event of the run",
                self._path,
                error,
            )
        else:
            self._unwritten = []

    def _append(self, path: Path, text: str, durable: bool = True) -> None:
        fresh = not path.exists()
        with path.open("a") as file:
            file.write(text)
        if durable:
            self._disk.sync(path)
        if durable and fresh:
            self._disk.sync(path.parent)

    def _mend(self, until: int) -> None:
        """Repair the file: remove incomplete and damaged lines, and take missing lines from the copy.

        If a line is missing in the copy too, log that the line is lost. The repair is done before anything is
        appended to the file.
        """
        whole = restored(self._path, until)
        before, copied = (p.read_bytes() if p.exists() else b"" for p in (self._path, self._copy))
        if before != whole:
            if before:
                log.warning(
                    "%s was damaged and was repaired; the file now has %d lines",
                    self._path,
                    whole.count(b"\n"),
                )
            self._disk.replace(self._path, whole)
        if copied != whole:  # The copy may lack a line after a crash, and earlier versions wrote no copy.
            self._disk.replace(self._copy, whole)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def copy_of(path: Path) -> Path:
    return path.with_suffix(f".copy{path.suffix}")


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the content of the complete lines of a rounds.jsonl. Incomplete and damaged lines are left out."""
    return [table for _, table in whole_lines(path)[0]]


def sealed_line(table: Mapping[str, Any]) -> str:
    text = json.dumps(table, allow_nan=False)
    return json.dumps({**table, "seal": row_checksum("round", text).hex()}, allow_nan=False) + "\n"


def whole_lines(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], int]:
    """Return each complete line with its content, and the number of damaged lines."""
    try:
        lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except FileNotFoundError:
        return [], 0
    whole = [(line, table) for line in lines if (table := whole_record(line))]
    return whole, len(lines) - len(whole)


def whole_record(text: str | bytes) -> dict[str, Any] | None:
    """Return the content of a line; None if the line is damaged. A line of an earlier version has no seal."""
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
    """Remove numbers that are not finite. Earlier versions wrote such numbers if a device had sent them."""
    match value:
        case dict():
            return {key: finite(inner) for key, inner in value.items() if not _is_odd(inner)}
        case list():
            return [finite(inner) for inner in value if not _is_odd(inner)]
    return value


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def restored(path: Path, until: int) -> bytes:
    """Return the complete lines in order. Lines that are missing before round `until` are taken from the copy."""
    lines, copies = (
        {table["round"]: line for line, table in whole_lines(p)[0]} for p in (path, copy_of(path))
    )
    missing = [number for number in range(1, until) if number not in lines]
    found = {number: copies[number] for number in missing if number in copies}
    if found:
        log.error(
            "%s lacked the lines of rounds %s; the lines are taken from the copy of the file",
            path,
            sorted(found),
        )
    if lost := [number for number in missing if number not in found]:
        log.error(
            "%s lacks the lines of rounds %s, and the copy of the file lacks these lines too", path, lost
        )
    return b"".join(line + b"\n" for _, line in sorted((lines | found).items()))
