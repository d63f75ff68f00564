"""Draw line charts and charts of stacked bars as SVG, with the names and the numbers of the lines and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from protofleet.lab.report.drawing.axes import Axes, Format, round_axis_end
from protofleet.lab.report.drawing.canvas import (
    NARROW,
    Canvas,
    Drawing,
    Key,
    Picture,
    PictureTable,
    end_labels,
    fill_of,
    keys_below,
    keys_beside,
    right_margin,
)
from protofleet.lab.report.numbers import NONE

MOST_DESCRIBED: Final = 12  # Maximum number of lines whose values are all described in words.


@dataclass(frozen=True)
class ChartLine:
    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    bold: bool = False
    labelled: bool = True
    dash: str = ""
    band: Sequence[
        tuple[float, float, float]
    ] = ()  # The spread of the values, as (x, lowest value, highest value).
    marked: bool = False  # True if each point has a dot.


@dataclass(frozen=True)
class Bar:
    """A stacked bar, filled or outlined."""

    x: float  # Position on the x axis; its nearest whole number is the bar's round or class.
    parts: Sequence[tuple[str, float]]  # The name and the size of each part of the bar.
    width: float
    outlined: bool = False

    @property
    def at(self) -> int:
        return math.floor(self.x + 0.5)


def line_chart(
    series: Sequence[ChartLine],
    y_format: Format,
    x_label: str,
    label: str,
    from_zero: bool = True,
    x_format: Format | None = None,
    log_x: bool = False,
) -> str:
    return line_picture(series, y_format, x_label, label, from_zero, x_format, log_x).html()


def line_picture(
    series: Sequence[ChartLine],
    y_format: Format,
    x_label: str,
    label: str,
    from_zero: bool = True,
    x_format: Format | None = None,
    log_x: bool = False,
) -> Picture:
    xs = [x for line in series for x, _ in line.points] or [1, 2]
    ys = [y for line in series for _, y in line.points] or [0, 1]
    margin = 0.1 * (max(ys) - min(ys)) or 0.1
    low, high = (
        (min(0.0, min(ys)), round_axis_end(max(ys))) if from_zero else (min(ys) - margin, max(ys) + margin)
    )
    last = max(max(xs), min(xs) * 1.01 if log_x else min(xs) + 1)
    keyed = {key_of(line, y_format): line.points[-1] for line in series if line.labelled and line.points}

    def draw(canvas: Canvas) -> Drawing:
        beside = 0 < len(keyed) <= canvas.most_beside
        right = right_margin([key.name for key in keyed], 34) if beside else NARROW.right
        axes = Axes(min(xs), last, low, high, right, log_x, canvas)
        drawn = [axes.svg(y_format, x_label, x_format)]
        drawn += [band(axes, line) for line in series if line.band]
        drawn += [polyline(axes, line) for line in series]
        height = axes.height(x_label)
        if beside:
            # All names are placed to the right of the longest line. At the end of a shorter line, a name would
            # cover other lines.
            ends = [(axes.y(y), axes.x(last), key) for key, (_, y) in keyed.items()]
            return Drawing("".join(drawn) + end_labels(ends, canvas), height)
        legend, height = keys_below(list(keyed), height, canvas)
        return Drawing("".join(drawn) + legend, height)

    numbers = numbers_of(series, y_format, x_label, x_format or plain)
    return Picture(label, described(series, y_format, x_label), draw, numbers)


def key_of(line: ChartLine, y_format: Format) -> Key:
    name = f"{line.name} {y_format(line.points[-1][1])}"
    return Key(name, line.colour, line=True, dash=line.dash, bold=line.bold)


def plain(value: float) -> str:
    return f"{value:g}"


def numbers_of(series: Sequence[ChartLine], y_format: Format, x_label: str, x_format: Format) -> PictureTable:
    """Return a table with a row for each x and a column for each line.

    If a line has a band at x, the cell has the form "middle of the band ± half its width".
    """
    values = [
        {x: y_format(y) for x, y in line.points}
        | {x: f"{y_format((low + high) / 2)} ± {y_format((high - low) / 2)}" for x, low, high in line.band}
        for line in series
    ]
    xs = sorted({x for found in values for x in found})
    rows = [[x_format(x), *(found.get(x, NONE) for found in values)] for x in xs]
    return PictureTable([x_label.partition(";")[0], *(line.name for line in series)], rows)


def described(series: Sequence[ChartLine], y_format: Format, x_label: str) -> str:
    """Describe the lines for readers who cannot see them.

    The description has the first, the last, the lowest and the highest value of each line.
    """
    drawn = [line for line in series if line.points]
    told = [line for line in drawn if line.labelled][:MOST_DESCRIBED]
    parts = []
    for line in told:
        ys = [y for _, y in line.points]
        ends = f"{y_format(ys[0])} to {y_format(ys[-1])}"
        parts.append(f"{line.name} from {ends}, lowest {y_format(min(ys))}, highest {y_format(max(ys))}")
    more = [f"{len(drawn) - len(told)} more lines"] if len(drawn) > len(told) else []
    return f"Lines over {x_label}. {'; '.join([*parts, *more]) or 'Nothing was measured'}."


def polyline(axes: Axes, line: ChartLine) -> str:
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
    width = 3.5 if line.bold else 1.6 if line.labelled else 0.9
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    dots = "".join(
        f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3" fill="{line.colour}"/>'
        # Without a dot, a line of one point would not be visible.
        for x, y in (line.points if line.marked or len(line.points) == 1 else ())
    )
    return (
        f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="{width}"{dash} '
        f'stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>{dots}'
    )


def band(axes: Axes, line: ChartLine) -> str:
    upper = [(x, min(high, axes.y_high)) for x, _, high in line.band]
    lower = [(x, max(low, axes.y_low)) for x, low, _ in reversed(line.band)]
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in [*upper, *lower])
    return f'<polygon points="{points}" fill="{line.colour}" fill-opacity="0.15"/>'


def bar_chart(
    series: Sequence[Bar],
    colours: Mapping[str, str],
    y_format: Format,
    x_label: str,
    label: str,
    faint: Sequence[str] = (),
) -> str:
    """Draw a bar chart. Parts with a name in `faint` are lighter than other parts with the same colour."""
    top = max((sum(size for _, size in bar.parts) for bar in series), default=1.0)
    first = min((bar.at for bar in series), default=1)
    last = max((bar.x for bar in series), default=1.0)
    outlined = {name for bar in series if bar.outlined for name, _ in bar.parts}
    keys = [Key(n, c, outlined=n in outlined, faint=n in faint) for n, c in colours.items()]

    def draw(canvas: Canvas) -> Drawing:
        beside = len(keys) <= canvas.most_beside
        right = right_margin(colours, 40) if beside else NARROW.right
        axes = Axes(first - 0.6, last + 0.6, 0.0, round_axis_end(top), right, canvas=canvas)
        drawn = axes.svg(y_format, x_label) + "".join(
            bar_parts(axes, bar, colours, y_format, faint) for bar in series
        )
        height = axes.height(x_label)
        if beside:
            legend, end = keys_beside(keys, canvas.width - right + 14, right - 14)
            return Drawing(drawn + legend, max(height, end))
        legend, height = keys_below(keys, height, canvas)
        return Drawing(drawn + legend, height)

    sums = f"the highest is {y_format(top)}" if series else "there is none"
    words = f"Bars over {x_label}: {', '.join(colours)}; {sums}."
    return Picture(label, words, draw, numbers_of_bars(series, list(colours), y_format, x_label)).html()


def numbers_of_bars(
    series: Sequence[Bar], names: Sequence[str], y_format: Format, x_label: str
) -> PictureTable:
    found: dict[int, dict[str, str]] = {}
    for bar in series:
        found.setdefault(bar.at, {}).update({name: y_format(size) for name, size in bar.parts})
    rows = [[str(at), *(values.get(name, NONE) for name in names)] for at, values in sorted(found.items())]
    return PictureTable([x_label, *names], rows)


def bar_parts(
    axes: Axes, bar: Bar, colours: Mapping[str, str], y_format: Format, faint: Sequence[str]
) -> str:
    base, drawn = 0.0, []
    for name, size in bar.parts:
        style = fill_of(colours[name], bar.outlined, name in faint)
        drawn.append(bar_segment(axes, bar, base, size, style, f"{name}: {y_format(size)}"))
        base += size
    return "".join(drawn)


def bar_segment(axes: Axes, bar: Bar, base: float, size: float, style: str, title: str) -> str:
    x, y = axes.x(bar.x - bar.width / 2), axes.y(base + size)
    width, height = axes.x(bar.x + bar.width / 2) - x, axes.y(base) - y
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}>'
        f"<title>{escape(title)}</title></rect>"
    )
