"""Make the sections about the machines, the versions and the settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import section, table
from protofleet.lab.report.numbers import NONE
from protofleet.protocol.wire.name_list import first_names

HEAD: Final = ("party", "software", "machine")
NOTE: Final = "As each party says it of itself; devices of earlier versions do not say it."
MOST_NAMED: Final = 12  # Maximum number of device names that are listed for one kind of software and machine.


def environment_section(run: FinishedRun) -> str:
    summary = run.summary
    rows = [
        ["coordinator", *coordinator_words(summary.get("versions", {}))],
        *device_rows(summary["devices"]),
    ]
    known = any(cell != NONE for row in rows for cell in row[1:])
    return (
        section("Versions and machines", table("Who ran on what", HEAD, rows, words=True), note=NOTE)
        if known
        else ""
    )


def coordinator_words(versions: Mapping[str, Any]) -> tuple[str, str]:
    named = {"protofleet": "protofleet", "python": "Python", "torch": "torch"}
    parts = [f"{word} {versions[key]}" for key, word in named.items() if versions.get(key)]
    return ", ".join(parts) or NONE, str(versions.get("machine", "")) or NONE


def device_rows(devices: Mapping[str, Any]) -> list[list[str]]:
    """Return one row for each combination of software and machine."""
    alike: dict[tuple[str, str], list[str]] = {}
    for device, said in sorted(devices.items()):
        # In a summary that was not sealed, this value may have any type.
        about = said if isinstance(said, Mapping) else {}
        kind = str(about.get("software") or NONE), str(about.get("machine") or NONE)
        alike.setdefault(kind, []).append(device)
    return [[first_names(names, MOST_NAMED), *kind] for kind, names in alike.items()]


def settings_section(run: FinishedRun) -> str:
    path = run.folder / "experiment.toml"
    text = path.read_text(errors="replace") if path.exists() else ""
    return section("Settings", f"<pre>{escape(text)}</pre>") if text else ""
