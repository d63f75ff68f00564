"""Draw bubbles that show how many training samples of each class each device has.

A row is a device, a column is a class, and the area of a bubble is the number of samples. If there are too
many devices or classes for the picture, several of them share a row or a column.

The picture fills the width of a phone. On wider pages, its width is limited to 460 pixels. Therefore the letters in
the picture have about the size of the surrounding text on every page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from protofleet.lab.report.data_counts import FleetCounts

WIDTH: Final = 336.0  # Width of the picture in pixels: a page of 400 pixels without its margins.
WIDEST: Final = 460  # Maximum width on a page, in pixels.
# Width of the devices' names at the left, and width of the devices' sums at the right, in pixels.
LABEL_WIDTH, TOTAL_WIDTH = 104.0, 44.0
MOST_COLUMNS, MOST_ROWS = 16, 60
# Largest number of letters of a name in the picture. The table and the title of the bubble have the whole name.
MOST_LETTERS: Final = 15
LETTER: Final = 7.0
ROW, HEADING, BASE = 24.0, 20.0, 24.0
SMALLEST: Final = (
    1.0  # Radius of the smallest bubble in pixels. It is large enough that one sample can be seen.
)
FILL: Final = "#0072B2"  # This colour has a contrast above 3:1 on white and on dark pages.


@dataclass(frozen=True)
class BubbleRow:
    label: str
    domain: str
    cells: tuple[int, ...]  # Number of samples in each column of the picture.


@dataclass(frozen=True)
class BubbleGrid:
    """The rows and columns of the picture.

    If there are too many devices or classes, several of them share a row or a column.
    """

    columns: tuple[str, ...]
    rows: tuple[BubbleRow, ...]
    headings: bool  # True if the name of each domain is written above the devices of the domain.

    @property
    def largest(self) -> int:
        return max((number for row in self.rows for number in row.cells), default=0)


def grid_of(fleet: FleetCounts) -> BubbleGrid:
    groups = neighbours(fleet.classes, MOST_COLUMNS)
    columns = tuple(fleet.class_name(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)
    rows = []
    for members in neighbours(len(fleet.devices), MOST_ROWS):
        devices = [fleet.devices[i] for i in members]
        more = f" +{len(devices) - 1}" if len(devices) > 1 else ""
        counts = [sum(column) for column in zip(*(one.counts for one in devices), strict=True)]
        cells = tuple(sum(counts[label] for label in group) for group in groups)
        rows.append(BubbleRow(devices[0].device + more, devices[0].domain, cells))
    own_names = all(row.domain.replace("_", "-") == row.label for row in rows)
    whole = len(rows) == len(fleet.devices)
    return BubbleGrid(columns, tuple(rows), whole and not own_names and len(fleet.domains) > 1)


def neighbours(count: int, most: int) -> list[range]:
    """Divide the numbers from 0 to `count` - 1 into at most `most` ranges."""
    size = max(1, -(-count // most))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def bubbles(fleet: FleetCounts, style: str = "") -> str:
    """Draw the picture. `style` is CSS, which a picture outside a page needs."""
    grid = grid_of(fleet)
    step = (WIDTH - LABEL_WIDTH - TOTAL_WIDTH) / max(1, len(grid.columns))
    upright = max(map(len, grid.columns), default=1) * LETTER > step
    y = 12.0 + (LETTER * min(MOST_LETTERS, max(map(len, grid.columns))) if upright else 12.0)
    elements = column_labels(grid.columns, step, y, upright)
    largest, radius, domain = grid.largest, 0.46 * min(step, ROW), None
    for row in grid.rows:
        if grid.headings and row.domain != domain:
            domain = row.domain
            elements.append(text(0, y + HEADING - 5, domain or "-", ' class="title"'))
            y += HEADING
        elements += row_elements(grid, row, y + ROW / 2, step, radius, largest)
        y += ROW
    elements.append(text(0, y + 18, f"the largest bubble: {largest:,} training samples"))
    number = len(fleet.devices)
    label = (
        f"training samples of {fleet.classes} classes on {number} {'device' if number == 1 else 'devices'}"
    )
    label += f"; skew {fleet.skew:.2f}" if number > 1 else ""
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {y + BASE:.0f}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{WIDEST}px" xmlns="http://www.w3.org/2000/svg">{style}{"".join(elements)}</svg>'
    )


def column_labels(columns: Sequence[str], step: float, y: float, upright: bool) -> list[str]:
    elements = [text(LABEL_WIDTH - 8, y - 6, "class", ' text-anchor="end"')]
    for i, name in enumerate(columns):
        x = LABEL_WIDTH + step * (i + 0.5)
        place = f' transform="rotate(-90 {x + 4:.1f} {y - 6:.1f})"' if upright else ' text-anchor="middle"'
        elements.append(text(x + 4 if upright else x, y - 6, name, place))
    return elements


def row_elements(
    grid: BubbleGrid, row: BubbleRow, y: float, step: float, radius: float, largest: int
) -> list[str]:
    end = LABEL_WIDTH + step * len(grid.columns)
    elements = [
        text(0, y + 4, row.label),
        f'<line class="grid" x1="{LABEL_WIDTH:.0f}" x2="{end:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        text(WIDTH, y + 4, f"{sum(row.cells):,}", ' text-anchor="end"'),
    ]
    for i, number in enumerate(row.cells):
        if number:
            size = max(SMALLEST, radius * math.sqrt(number / largest))
            title = f"{row.label}, class {grid.columns[i]}: {number:,}"
            elements.append(
                f'<circle cx="{LABEL_WIDTH + step * (i + 0.5):.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{FILL}">'
                f"<title>{escape(title)}</title></circle>"
            )
    return elements


def text(x: float, y: float, words: str, more: str = "") -> str:
    shown = words if len(words) <= MOST_LETTERS or " " in words else f"{words[: MOST_LETTERS - 1]}…"
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(shown)}</text>'
