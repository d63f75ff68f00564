"""Make the section about the training data, for the report of a run or for a page of its own."""

from __future__ import annotations

from typing import Final

from protofleet.lab.report.data_bubbles import bubbles, grid_of
from protofleet.lab.report.data_counts import FleetCounts, skew_words
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import section, table, unfolded
from protofleet.lab.report.known_data import known_counts

TITLE: Final = "Data"
CAPTION: Final = "Training samples of each class on each device"
# Largest number of cells of a table. In a larger table, several devices share a row and several classes share a
# column, as in the picture.
MOST_CELLS: Final = 20_000
UNKNOWN: Final = (
    "What the devices learn from is not known here: a device tells its coordinator no more than its method "
    "needs."
)
SKEW: Final = (
    "the mean over devices of the total variation distance between a device's mix of classes and the mix of all "
    "these samples. How samples look, which is what domains differ in, has no part in it."
)


def run_section(run: FinishedRun) -> str:
    """Return the section of a run. The numbers come from the files that the devices on this machine have written."""
    fleet, unknown = known_counts(run.folder)
    return data_section(fleet, unknown) if fleet.devices else section(TITLE, note=UNKNOWN)


def data_section(fleet: FleetCounts, unknown: int = 0) -> str:
    missing = f" Nothing is known here of {unknown} more." if unknown else ""
    about = (
        f"{sum(one.total for one in fleet.devices):,} training samples of {fleet.classes} classes on "
        f"{devices(len(fleet.devices))}, of {domains(fleet)}.{missing}"
    )
    meaning = f": {SKEW}" if len(fleet.devices) > 1 else ""
    skew = f"<p><b>Skew of classes: {skew_words(fleet)}</b>{meaning}</p>"
    numbers = unfolded(f"The numbers: {CAPTION.lower()}", counts_table(fleet))
    return section(TITLE, skew, bubbles(fleet), numbers, note=about)


def devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def domains(fleet: FleetCounts) -> str:
    found = [name for name in fleet.domains if name]
    if len(found) > 8:
        return f"{len(found)} domains"
    return f"{'domains ' if len(found) != 1 else 'the domain '}{', '.join(found) or 'unknown'}"


def counts_table(fleet: FleetCounts) -> str:
    head, rows, caption = columns_and_rows(fleet)
    cells = [
        [name, domain, *(f"{number:,}" for number in (*counts, sum(counts)))] for name, domain, counts in rows
    ]
    return table(caption, ["device", "domain", *head, "all"], cells)


def columns_and_rows(fleet: FleetCounts) -> tuple[list[str], list[tuple[str, str, tuple[int, ...]]], str]:
    if fleet.classes * len(fleet.devices) <= MOST_CELLS:
        names = [fleet.class_name(label) for label in range(fleet.classes)]
        return names, [(one.device, one.domain, one.counts) for one in fleet.devices], CAPTION
    grid = grid_of(fleet)
    rows = [(row.label, row.domain, row.cells) for row in grid.rows]
    return list(grid.columns), rows, f"{CAPTION}, neighbours together as in the picture"
