"""Runs that differ in one number as a curve over it, in two as a heat map: figures of hyper-parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev
from typing import Any, Final

from protofleet.deploy.report.charts import COLOURS, HEIGHT, LEFT, TOP, WIDTH, Line, line_chart, svg
from protofleet.deploy.report.comparison import Group
from protofleet.deploy.report.numbers import percent, percent_points

FEWEST: Final = 3  # points that make a curve
LOG_RATIO: Final = 8.0  # of the largest to the smallest value, from which the axis is logarithmic
DARK: Final = 0.55  # share of the range from which letters on a cell are white
CELL_HEIGHT: Final = 34.0


@dataclass(frozen=True)
class Varied:
    """The settings in which groups differ, where all of these are numbers."""

    keys: tuple[str, ...]
    groups: Mapping[tuple[float, ...], Group]  # by their values

    def values(self, axis: int) -> list[float]:
        return sorted({values[axis] for values in self.groups})


def varied(groups: Sequence[Group]) -> Varied | None:
    """None where groups differ in something else, or two of them in nothing that can be seen."""
    settings = [flat(json.loads(group.runs[0].settings)) for group in groups]
    keys = sorted({key for one in settings for key in one})
    differing = [key for key in keys if len({json.dumps(one.get(key)) for one in settings}) > 1]
    found = [tuple(one.get(key) for key in differing) for one in settings]
    if not differing or not all(is_number(value) for values in found for value in values):
        return None
    placed = dict(zip(found, groups, strict=True))
    return Varied(tuple(differing), placed) if len(placed) == len(groups) else None  # type: ignore[arg-type]


def flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def grid_section(groups: Sequence[Group]) -> str:
    """Nothing where the groups are no grid of one or two numbers."""
    if len(groups) < FEWEST or (found := varied(groups)) is None or len(found.keys) > 2:
        return ""
    picture = curve(found) if len(found.keys) == 1 else heat_map(found)
    text = "Mean test accuracy over domains after the last round; with several seeds their mean"
    text += ", and a band of one standard deviation." if len(found.keys) == 1 else "."
    return (
        f"<section><h2>Accuracy over {escape(' and '.join(found.keys))}</h2><p>{text}</p>{picture}</section>"
    )


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
    line = Line("accuracy", points, COLOURS[0], band=band, marked=True)
    return line_chart([line], percent, axis, f"accuracy over {found.keys[0]}", False, "{:g}".format, log)


def heat_map(found: Varied) -> str:
    """The first setting downwards, the second across; a point that has no result is left out."""
    rows, columns = found.values(0), found.values(1)
    means = {at: fmean(values) for at, group in found.groups.items() if (values := accuracies(group))}
    low, high = min(means.values(), default=0.0), max(means.values(), default=1.0)
    width = (WIDTH - LEFT - 16) / len(columns)
    elements = []
    for i, row in enumerate(rows):
        y = TOP + i * CELL_HEIGHT
        elements.append(label(LEFT - 8, y + CELL_HEIGHT / 2, f"{row:g}", "end"))
        for j, column in enumerate(columns):
            if (row, column) in means:
                share = (means[row, column] - low) / ((high - low) or 1.0)
                elements.append(cell(LEFT + j * width, y, width, means[row, column], share))
    bottom = TOP + len(rows) * CELL_HEIGHT
    elements += [
        label(LEFT + (j + 0.5) * width, bottom + 18, f"{column:g}") for j, column in enumerate(columns)
    ]
    words = f"down: {found.keys[0]}; across: {found.keys[1]}"
    elements.append(label(LEFT + (WIDTH - LEFT) / 2, bottom + 38, words))
    return svg("".join(elements), f"accuracy over {' and '.join(found.keys)}", max(bottom + 46, HEIGHT / 3))


def cell(x: float, y: float, width: float, mean: float, share: float) -> str:
    ink = "#ffffff" if share > DARK else "#111111"
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{CELL_HEIGHT - 2:.1f}" '
        f'fill="#ffffff"/><rect x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{CELL_HEIGHT - 2:.1f}" '
        f'fill="{COLOURS[0]}" fill-opacity="{0.08 + 0.92 * share:.2f}"/>'
        f'<text x="{x + width / 2:.1f}" y="{y + CELL_HEIGHT / 2 + 4:.1f}" text-anchor="middle" '
        f'style="fill:{ink}">{percent_points(mean)}</text>'
    )


def label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
