"""The file summary.json, with a seal that shows whether the file is damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.observe.record import Summary, odd_summary
from protofleet.coordinator.spool.index import row_checksum
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError

WAY_OUT: Final = "put it back from a copy, or remove it and run the same command again, which writes it anew"
# The fields of a summary that was written before summaries had a seal.
UNSEALED: Final = frozenset(field.name for field in fields(Summary))


def write_summary(path: Path, summary: Mapping[str, Any], disk: Disk) -> None:
    sealed = {**summary, "seal": _seal(summary)}
    disk.replace(path, (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())


def read_summary(path: Path) -> dict[str, Any]:
    """Read a summary, or raise DamagedError. A summary of an earlier version has no seal."""
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {str(error)[:80]}; {WAY_OUT}") from None
    if not isinstance(summary, dict):
        raise DamagedError(f"{path} is not a summary of a run; {WAY_OUT}")
    sealed = summary.pop("seal", None)
    if sealed is None and (odd := sorted(summary.keys() - UNSEALED)):
        raise DamagedError(f"{path} is damaged: {odd[0][:40]!r} is not a key of a summary; {WAY_OUT}")
    if sealed is None and (words := odd_summary(summary)):
        raise DamagedError(f"{path} is not a summary of a run: {words}; {WAY_OUT}")
    if sealed is not None and sealed != _seal(summary):
        raise DamagedError(f"{path} is damaged: its content does not match its checksum; {WAY_OUT}")
    return summary


def _seal(summary: Mapping[str, Any]) -> str:
    return row_checksum("summary", json.dumps(summary, allow_nan=False)).hex()
