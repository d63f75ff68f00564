"""Charts as SVG: lines over rounds and stacked bars, with their names beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Okabe and Ito's palette, distinguishable with every kind of colour vision, and four more, distinct from it,
# from black and from white.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C6D31", "#6F3FE0", "#99CC66",
)  # fmt: skip
GREY = COLOURS[6]
WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 16, 40
MAX_RIGHT = 300  # pixels, at most, for names at the ends of lines
LETTER_WIDTH = 6.6  # pixels, on average
Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    bold: bool = False
    labelled: bool = True
    dash: str = ""
    band: Sequence[tuple[float, float, float]] = ()  # (x, from, to): the spread of its values
    marked: bool = False  # with a dot at each point


@dataclass(frozen=True)
class Bar:
    """A stacked bar, filled or outlined."""

    x: float
    parts: Sequence[tuple[str, float]]  # (name, size)
    width: float
    outlined: bool = False


def line_chart(
    series: Sequence[Line],
    y_format: Format,
    x_label: str,
    label: str,
    from_zero: bool = True,
    x_format: Format | None = None,
    log_x: bool = False,
) -> str:
    xs = [x for line in series for x, _ in line.points] or [1, 2]
    ys = [y for line in series for _, y in line.points] or [0, 1]
    margin = 0.1 * (max(ys) - min(ys)) or 0.1
    low, high = (
        (min(0.0, min(ys)), round_axis_end(max(ys))) if from_zero else (min(ys) - margin, max(ys) + margin)
    )
    last = max(max(xs), min(xs) * 1.01 if log_x else min(xs) + 1)
    labelled = [line for line in series if line.labelled and line.points]
    names = [f"{line.name} {y_format(line.points[-1][1])}" for line in labelled]
    axes = Axes(min(xs), last, low, high, right_margin(names, 16), log_x)
    elements = [axes.svg(y_format, x_label, x_format)]
    elements += [band(axes, line) for line in series if line.band]
    elements += [polyline(axes, line) for line in series]
    ends = [
        (axes.y(y), axes.x(x), name, line.colour, line.bold)
        for line, name in zip(labelled, names, strict=True)
        for x, y in line.points[-1:]
    ]
    return svg("".join(elements) + end_labels(ends), label)


def right_margin(names: Iterable[str], gap: float) -> float:
    """Pixels for names at the right of the axes, `gap` pixels beside them."""
    return min(MAX_RIGHT, max(RIGHT, gap + LETTER_WIDTH * max(map(len, names), default=0)))


def polyline(axes: Axes, line: Line) -> str:
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line.points)
    width = 3.5 if line.bold else 1.6 if line.labelled else 0.9
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    dots = "".join(
        f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3" fill="{line.colour}"/>'
        for x, y in (line.points if line.marked else ())
    )
    return (
        f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="{width}"{dash} '
        f'stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>{dots}'
    )


def band(axes: Axes, line: Line) -> str:
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
) -> str:
    top = max((sum(size for _, size in bar.parts) for bar in series), default=1.0)
    first = min((math.floor(bar.x + 0.5) for bar in series), default=1)
    last = max((bar.x for bar in series), default=1.0)
    right = right_margin(colours, 40)
    axes = Axes(first - 0.6, last + 0.6, 0.0, round_axis_end(top), right)
    elements = [axes.svg(y_format, x_label)]
    outlined = {name for bar in series if bar.outlined for name, _ in bar.parts}
    for bar in series:
        base = 0.0
        for name, size in bar.parts:
            elements.append(bar_segment(axes, bar, base, size, name, colours[name], y_format))
            base += size
    return svg("".join(elements) + legend(colours, outlined, WIDTH - right + 14), label)


def bar_segment(
    axes: Axes, bar: Bar, base: float, size: float, name: str, colour: str, format_value: Format
) -> str:
    x, y = axes.x(bar.x - bar.width / 2), axes.y(base + size)
    width, height = axes.x(bar.x + bar.width / 2) - x, axes.y(base) - y
    style = f'fill="none" stroke="{colour}" stroke-dasharray="3 2"' if bar.outlined else f'fill="{colour}"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}>'
        f"<title>{escape(name)}: {escape(format_value(size))}</title></rect>"
    )


@dataclass(frozen=True)
class Axes:
    """The ranges of both axes, and the pixels of a value on them."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    right: float = RIGHT  # pixels beside the axes, for names
    log_x: bool = False

    def x(self, value: float) -> float:
        low, high = self.x_low, self.x_high
        if self.log_x:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - self.right)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def svg(self, y_format: Format, x_label: str, x_format: Format | None = None) -> str:
        elements = []
        end = WIDTH - self.right
        for i in range(5):
            value = self.y_low + (self.y_high - self.y_low) * i / 4
            y = self.y(value)
            elements.append(f'<line class="grid" x1="{LEFT}" x2="{end:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            elements.append(
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(y_format(value))}</text>'
            )
        for value in self.x_ticks(limit=6 if x_format else 12):
            text = x_format(value) if x_format else f"{value:.0f}"
            position = f'x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 18}"'
            elements.append(f'<text {position} text-anchor="middle">{escape(text)}</text>')
        middle = (LEFT + end) / 2
        elements.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
        return "".join(elements)

    def x_ticks(self, limit: int) -> list[float]:
        """Multiples of 1, 2 or 5; on a logarithmic axis powers of ten, and 2 and 5 times them where those are few."""
        if self.log_x:
            first, last = math.floor(math.log10(self.x_low)), math.ceil(math.log10(self.x_high))
            factors = (1,) if last - first > 3 else (1, 2, 5)
            marks = [t * 10.0**power for power in range(first, last + 1) for t in factors]
            return [m for m in marks if self.x_low * 0.999 <= m <= self.x_high * 1.001]
        smallest = max(1.0, (self.x_high - self.x_low) / limit)
        power = 10 ** math.floor(math.log10(smallest))
        step = next(t * power for t in (1, 2, 5, 10) if t * power >= smallest * 0.999)
        return [i * step for i in range(math.ceil(self.x_low / step), math.floor(self.x_high / step) + 1)]


def end_labels(ends: Sequence[tuple[float, float, str, str, bool]]) -> str:
    """Names at the ends of their lines, moved apart where they would overlap, inside the picture where they fit."""
    ends = sorted(ends)
    ys: list[float] = []
    for y, *_ in ends:
        ys.append(max(y, ys[-1] + 14) if ys else y)
    ceiling: float = HEIGHT - BOTTOM
    for i in reversed(range(len(ys))):
        ys[i] = min(ys[i], ceiling)
        ceiling = ys[i] - 14
    elements = []
    for y_label, (_, x, text, colour, bold) in zip(ys, ends, strict=True):
        weight = ' font-weight="700"' if bold else ""
        elements.append(
            f'<text x="{x + 8:.1f}" y="{y_label + 4:.1f}" style="fill:{colour}"{weight}>{escape(text)}</text>'
        )
    return "".join(elements)


def legend(colours: Mapping[str, str], outlined: set[str], x: float) -> str:
    elements = []
    for i, (name, colour) in enumerate(colours.items()):
        y = TOP + 18 * i
        style = (
            f'fill="{colour}"'
            if name not in outlined
            else f'fill="none" stroke="{colour}" stroke-dasharray="3 2"'
        )
        elements.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" {style}/>')
        elements.append(f'<text x="{x + 17:.0f}" y="{y + 10}">{escape(name)}</text>')
    return "".join(elements)


def svg(content: str, label: str, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def round_axis_end(value: float) -> float:
    """A round number at or above a value, for the top of an axis; its quarters are round too."""
    if value <= 0:
        return 1.0
    power = float(10 ** math.floor(math.log10(value)))
    return next(
        step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value * 0.999
    )
