"""Copy files into a stack's folder, where the operator may edit them; an edited file is never overwritten."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Final

from protofleet.protocol.security.keyfiles import write_file

WRITTEN: Final = ".written.json"  # This file stores the hash that each file had when we last copied it.
NEWER: Final = ".new"


def copy_unless_edited(source: Path, target: Path) -> list[Path]:
    """Replace the files that were not edited; return the edited files for which there is a new version.

    An edited file is not changed: our new version is written next to it, with the ending `.new`. If our version
    has not changed since the file was edited, nothing is written, and the file is not returned.
    """
    record = target / WRITTEN
    before = _read(record)
    written, edited = dict[str, str](), list[Path]()
    for path in sorted(one for one in source.rglob("*") if one.is_file()):
        name, place = str(path.relative_to(source)), target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        ours, beside = path.read_bytes(), place.with_name(place.name + NEWER)
        there = place.read_bytes() if place.exists() else None
        written[name] = _hash(ours)
        if there in (None, ours) or _hash(there or b"") == before.get(name):
            write_file(place, ours, durable=False)
            beside.unlink(missing_ok=True)
        elif before.get(name) == written[name]:
            pass  # Our file has not changed since the operator edited the copy, so there is no new version.
        else:
            write_file(beside, ours, durable=False)
            edited.append(place)
            written[name] = before.get(name, "")
    write_file(record, json.dumps(written, indent=1).encode(), durable=False)
    return edited


def say_what_stays(edited: list[Path]) -> None:
    for path in edited:
        print(
            f"stack: {path} was edited and is not changed; the new version is {path.name}{NEWER} in the same folder: "
            "copy the lines that you need, or remove your version",
            file=sys.stderr,
        )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(record: Path) -> dict[str, str]:
    try:
        found = json.loads(record.read_text())
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
