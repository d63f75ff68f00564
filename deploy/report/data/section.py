"""The section of a report, and of a page of its own, on what devices learn from."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from protofleet.deploy.report.data.bubbles import bubbles, grid_of
from protofleet.deploy.report.data.counts import FleetCounts, skew_words
from protofleet.deploy.report.data.known import known_counts

MOST_CELLS: Final = 20_000  # of a table; a larger one has the rows and columns of the picture
UNKNOWN: Final = (
    "What the devices learn from is not known here: a device tells its coordinator no more than its method "
    "needs."
)
SKEW: Final = (
    "the mean over devices of the total variation distance between a device's mix of classes and the mix of all "
    "these images. How images look, which is what domains differ in, has no part in it."
)


def run_section(folder: Path) -> str:
    """Of a run's folder: what its devices have written there, where they are on this machine."""
    fleet, unknown = known_counts(folder)
    if not fleet.devices:
        return f"<section><h2>Data</h2><p>{UNKNOWN}</p></section>"
    return data_section(fleet, unknown)


def data_section(fleet: FleetCounts, unknown: int = 0) -> str:
    missing = f" Nothing is known here of {unknown} more." if unknown else ""
    about = (
        f"{sum(one.total for one in fleet.devices):,} training images of {fleet.classes} classes on "
        f"{devices(len(fleet.devices))}, of {domains(fleet)}.{missing}"
    )
    return (
        f"<section><h2>Data</h2><p>{escape(about)}</p>"
        f"<p><b>Skew of classes: {skew_words(fleet)}</b>: {SKEW}</p>"
        f"{bubbles(fleet)}<details><summary>The numbers</summary>{counts_table(fleet)}</details></section>"
    )


def devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def domains(fleet: FleetCounts) -> str:
    found = [name for name in fleet.domains if name]
    if len(found) > 8:
        return f"{len(found)} domains"
    return f"{'domains ' if len(found) != 1 else 'the domain '}{', '.join(found) or 'unknown'}"


def counts_table(fleet: FleetCounts) -> str:
    head, rows, words = columns_and_rows(fleet)
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("device", "domain", *head, "all"))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(domain)}</td>'
        f"{''.join(f'<td>{number:,}</td>' for number in (*cells, sum(cells)))}</tr>"
        for name, domain, cells in rows
    )
    # It scrolls by itself: a page must not become as wide as a table of a hundred classes.
    return (
        f'<div style="overflow-x:auto" tabindex="0" role="region" aria-label="{words}"><table>'
        f'<caption style="text-align:left">{words}</caption><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def columns_and_rows(fleet: FleetCounts) -> tuple[list[str], list[tuple[str, str, tuple[int, ...]]], str]:
    words = "Training images of each class on each device"
    if fleet.classes * len(fleet.devices) <= MOST_CELLS:
        names = [fleet.class_name(label) for label in range(fleet.classes)]
        return names, [(one.device, one.domain, one.counts) for one in fleet.devices], words
    grid = grid_of(fleet)
    rows = [(row.label, row.domain, row.cells) for row in grid.rows]
    return list(grid.columns), rows, f"{words}, neighbours together as in the picture"
