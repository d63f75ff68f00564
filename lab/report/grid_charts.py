"""Draw runs that differ in one number as a curve, and runs that differ in two numbers as a heat map.

The charts show how a setting of the method changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev
from typing import Final

from protofleet.lab.report.comparison import Group
from protofleet.lab.report.drawing.canvas import LETTER_WIDTH, TOP, Canvas, Drawing, Picture, PictureTable
from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.drawing.palette import COLOURS
from protofleet.lab.report.html_page import section
from protofleet.lab.report.numbers import NONE, percent, percent_points
from protofleet.lab.report.settings_difference import differing, settings_of

FEWEST: Final = 3  # A curve is drawn only if it has at least this number of points.
# The axis is logarithmic if the ratio of the largest value to the smallest value is at least this number.
LOG_RATIO: Final = 8.0
# The colour of the best cell. The worst cell is nearly white. READABLE decides whether the letters are black or
# white.
BLUE: Final = (
    0,
    114,
    178,
)
READABLE: Final = 0.179  # On a cell of this luminance, black and white letters have the same contrast, 4.6:1.
CELL_HEIGHT: Final = 34.0


@dataclass(frozen=True)
class Varied:
    """The settings in which groups differ. All these settings are numbers."""

    keys: tuple[str, ...]
    groups: Mapping[tuple[float, ...], Group]  # Values of the settings `keys` -> the group with these values.

    def values(self, axis: int) -> list[float]:
        return sorted({values[axis] for values in self.groups})


def varied(groups: Sequence[Group]) -> Varied | None:
    """Return the settings in which the groups differ.

    Return None if groups differ in a setting that is not a number, or if two groups have the same settings.
    """
    settings = settings_of(groups)
    keys = differing(settings)
    found = [tuple(one.get(key) for key in keys) for one in settings]
    if not keys or not all(is_number(value) for values in found for value in values):
        return None
    placed = dict(zip(found, groups, strict=True))
    return Varied(tuple(keys), placed) if len(placed) == len(groups) else None  # type: ignore[arg-type]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def grid_section(groups: Sequence[Group]) -> str:
    """Return the section, or "" if the groups do not differ in exactly one or two numbers."""
    if len(groups) < FEWEST or (found := varied(groups)) is None or len(found.keys) > 2:
        return ""
    drawn = curve(found) if len(found.keys) == 1 else heat_map(found)
    text = "Mean test accuracy over domains after the last round; with several seeds their mean"
    text += ", and a band of one standard deviation." if len(found.keys) == 1 else "."
    return section(f"Accuracy over {' and '.join(found.keys)}", drawn, note=text)


def accuracies(group: Group) -> list[float]:
    return [point.accuracy["mean"] for point in group.final_points()]


def curve(found: Varied) -> str:
    points, band = [], []
    for x in found.values(0):
        if values := accuracies(found.groups[(x,)]):
            points.append((x, fmean(values)))
            if len(values) > 1:
                band.append((x, fmean(values) - stdev(values), fmean(values) + stdev(values)))
    xs = [x for x, _ in points]
    log = bool(xs) and min(xs) > 0 and max(xs) >= LOG_RATIO * min(xs)
    axis = found.keys[0] + ("; the axis is logarithmic" if log else "")
    line = ChartLine("accuracy", points, COLOURS[0], band=band, marked=True)
    return line_chart([line], percent, axis, f"accuracy over {found.keys[0]}", False, "{:g}".format, log)


def heat_map(found: Varied) -> str:
    """Draw a heat map with a row for each value of the first setting and a column for each value of the second.

    A point without a result has no cell.
    """
    rows, columns = found.values(0), found.values(1)
    means = {at: fmean(values) for at, group in found.groups.items() if (values := accuracies(group))}
    title = f"accuracy over {' and '.join(found.keys)}"
    table = [
        [f"{row:g}", *(percent_points(means[row, c]) if (row, c) in means else NONE for c in columns)]
        for row in rows
    ]
    best = max(means, key=means.__getitem__, default=None)
    words = f"A grid of {found.keys[0]} downwards and {found.keys[1]} across."
    if best is not None:
        words += f" The best is {percent(means[best])} at {best[0]:g} and {best[1]:g}."
    numbers = PictureTable([" / ".join(found.keys), *(f"{c:g}" for c in columns)], table)
    return Picture(
        title, words, lambda canvas: draw_heat_map(canvas, found.keys, rows, columns, means), numbers
    ).html()


def draw_heat_map(
    canvas: Canvas, keys: Sequence[str], rows: Sequence[float], columns: Sequence[float],
    means: Mapping[tuple[float, ...], float],
) -> Drawing:  # fmt: skip
    low, high = min(means.values(), default=0.0), max(means.values(), default=1.0)
    width = (canvas.width - canvas.left - 16) / len(columns)
    drawn = []
    for i, row in enumerate(rows):
        y = TOP + i * CELL_HEIGHT
        drawn.append(label(canvas.left - 8, y + CELL_HEIGHT / 2 + 4, f"{row:g}", "end"))
        for j, column in enumerate(columns):
            if (row, column) in means:
                share = (means[row, column] - low) / ((high - low) or 1.0)
                drawn.append(cell(canvas.left + j * width, y, width, means[row, column], share))
    bottom = TOP + len(rows) * CELL_HEIGHT
    every = max(1, math.ceil(6 * LETTER_WIDTH / width))
    drawn += [
        label(canvas.left + (j + 0.5) * width, bottom + 18, f"{column:g}")
        for j, column in enumerate(columns)
        if j % every == 0
    ]
    middle = canvas.left + (canvas.width - canvas.left) / 2
    words = canvas.wrapped(f"down: {keys[0]}; across: {keys[1]}")
    drawn += [label(middle, bottom + 38 + 14 * i, line) for i, line in enumerate(words)]
    return Drawing("".join(drawn), bottom + 32 + 14 * len(words))


def cell(x: float, y: float, width: float, mean: float, share: float) -> str:
    red, green, blue = (round(255 + (c - 255) * (0.08 + 0.92 * share)) for c in BLUE)
    ink = "#000000" if luminance(red, green, blue) > READABLE else "#ffffff"
    text = percent_points(mean)
    words = (
        f'<text x="{x + width / 2:.1f}" y="{y + CELL_HEIGHT / 2 + 3:.1f}" class="middle" '
        f'style="fill:{ink}">{text}</text>'
        if width >= len(text) * LETTER_WIDTH + 4
        else ""  # A narrow cell has no number. The number is in the table.
    )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{CELL_HEIGHT - 2:.1f}" '
        f'fill="#{red:02x}{green:02x}{blue:02x}"><title>{text}</title></rect>{words}'
    )


def luminance(*colour: int) -> float:
    """Return the relative luminance of a colour, which is needed to compute a contrast."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{anchor}">{escape(text)}</text>'
