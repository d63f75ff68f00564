"""Known weaknesses from a file: the records of osv.dev for PyPI, as it gives them away in one archive.

For machines without a network: the archive is carried in. A record names a package and its weak versions, one by
one or as ranges from `introduced` to `fixed` or `last_affected`.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import InvalidVersion, Version

PIN: Final = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
MAX_RECORD: Final = 16 << 20  # bytes of one record


class AdvisoryError(ValueError):
    """The file holds no records that can be used."""


@dataclass(frozen=True, slots=True)
class Weakness:
    package: str
    version: str
    record: str
    fixed: tuple[str, ...]
    summary: str


def pinned(constraints: Path) -> dict[str, str]:
    """Name to version, of a constraints file."""
    lines = (line.strip() for line in constraints.read_text().splitlines())
    return {_normal(m[1]): m[2] for line in lines if (m := PIN.match(line))}


def weaknesses(archive: Path, packages: Mapping[str, str]) -> tuple[int, list[Weakness]]:
    """How many records were read, and those that say something of these packages."""
    read, found = 0, []
    for record in _records(archive):
        read += 1
        if not record.get("withdrawn"):
            found += [w for affected in record.get("affected", ()) for w in _met(record, affected, packages)]
    if not read:
        raise AdvisoryError(f"{archive} holds no records; it should be osv.dev's archive for PyPI, all.zip")
    return read, sorted(set(found), key=lambda w: (w.package, w.record))


def _records(archive: Path) -> Iterator[dict[str, Any]]:
    try:
        with zipfile.ZipFile(archive) as held:
            for entry in held.infolist():
                if entry.filename.endswith(".json"):
                    if entry.file_size > MAX_RECORD:
                        raise AdvisoryError(
                            f"{entry.filename} has {entry.file_size} bytes, over {MAX_RECORD}"
                        )
                    record = json.loads(held.read(entry))
                    if isinstance(record, dict):
                        yield record
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise AdvisoryError(f"{archive} cannot be used: {error}") from None


def _met(record: Mapping[str, Any], affected: Any, packages: Mapping[str, str]) -> Iterator[Weakness]:
    package = affected.get("package", {})
    name = _normal(str(package.get("name", "")))
    if package.get("ecosystem") != "PyPI" or (version := packages.get(name)) is None:
        return
    ranges = [r for r in affected.get("ranges", ()) if r.get("type") == "ECOSYSTEM"]
    if version in affected.get("versions", ()) or any(_within(version, r["events"]) for r in ranges):
        fixed = {e["fixed"] for r in ranges for e in r["events"] if "fixed" in e}
        yield Weakness(name, version, record["id"], tuple(sorted(fixed)), record.get("summary", "")[:120])


def _within(version: str, events: list[dict[str, str]]) -> bool:
    """Events of a range are in order of their versions: each turns it on or off from there."""
    here, weak = Version(version), False
    for event in events:
        what, at = next(iter(event.items()))
        try:
            edge = Version(at)
        except InvalidVersion:
            continue
        if what == "introduced" and here >= edge:
            weak = True
        elif (what == "fixed" and here >= edge) or (what == "last_affected" and here > edge):
            weak = False
    return weak


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
