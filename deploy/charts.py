"""Pictures as SVG: lines over rounds and stacked bars, labelled where they are, in any browser, offline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Okabe and Ito's palette: told apart by every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C6D31")
WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 16, 40


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    bold: bool = False
    labelled: bool = True


@dataclass(frozen=True)
class Bar:
    """One bar: parts stacked from below; `hollow` ones are drawn as an outline."""

    place: float
    parts: Sequence[tuple[str, float]]  # (name, size)
    width: float
    hollow: bool = False


def lines(
    series: Sequence[Line], y_words: Callable[[float], str], x_label: str, label: str, from_zero: bool = True
) -> str:
    xs = [x for line in series for x, _ in line.points] or [0, 1]
    ys = [y for line in series for _, y in line.points] or [0, 1]
    room = 0.1 * (max(ys) - min(ys)) or 0.1
    low, high = (min(0.0, min(ys)), nice(max(ys))) if from_zero else (min(ys) - room, max(ys) + room)
    frame = Frame(min(xs), max(max(xs), min(xs) + 1), low, high)
    drawn = [frame.axes(y_words, x_label)]
    ends = []
    for line in series:
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
        width = 3.5 if line.bold else 1.6 if line.labelled else 0.9
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{width}" '
            f'stroke-linejoin="round"><title>{escape(line.name)}</title></polyline>'
        )
        if line.labelled and line.points:
            x, y = line.points[-1]
            ends.append((frame.y(y), frame.x(x), f"{line.name} {y_words(y)}", line.colour, line.bold))
    return svg("".join(drawn) + end_labels(ends), label)


def bars(
    groups: Sequence[Bar],
    colours: Mapping[str, str],
    y_words: Callable[[float], str],
    x_label: str,
    label: str,
) -> str:
    top = max((sum(size for _, size in bar.parts) for bar in groups), default=1.0)
    last = max((bar.place for bar in groups), default=1.0)
    frame = Frame(0.4, last + 0.6, 0.0, nice(top))
    drawn = [frame.axes(y_words, x_label)]
    outlined = {name for bar in groups if bar.hollow for name, _ in bar.parts}
    for bar in groups:
        base = 0.0
        for name, size in bar.parts:
            drawn.append(block(frame, bar, base, size, name, colours[name], y_words))
            base += size
    return svg("".join(drawn) + legend(colours, outlined), label)


def block(
    frame: Frame, bar: Bar, base: float, size: float, name: str, colour: str, words: Callable[[float], str]
) -> str:
    x, y = frame.x(bar.place - bar.width / 2), frame.y(base + size)
    width, height = frame.x(bar.place + bar.width / 2) - x, frame.y(base) - y
    paint = f'fill="none" stroke="{colour}" stroke-dasharray="3 2"' if bar.hollow else f'fill="{colour}"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {paint}>'
        f"<title>{escape(name)}: {escape(words(size))}</title></rect>"
    )


@dataclass(frozen=True)
class Frame:
    """From data to places on the picture."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def axes(self, y_words: Callable[[float], str], x_label: str) -> str:
        drawn = []
        for i in range(5):
            value = self.y_low + (self.y_high - self.y_low) * i / 4
            y = self.y(value)
            drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            drawn.append(
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(y_words(value))}</text>'
            )
        step = max(1, math.ceil((self.x_high - self.x_low) / 12))
        for value in range(math.ceil(self.x_low), math.floor(self.x_high) + 1, step):
            drawn.append(
                f'<text x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        drawn.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
        return "".join(drawn)


def end_labels(ends: Sequence[tuple[float, float, str, str, bool]]) -> str:
    """Names at the ends of their lines, moved apart where they would overlap."""
    drawn, floor = [], -math.inf
    for y, x, words, colour, bold in sorted(ends):
        place = max(y, floor + 14)
        floor = place
        weight = ' font-weight="700"' if bold else ""
        drawn.append(
            f'<text x="{x + 8:.1f}" y="{place + 4:.1f}" style="fill:{colour}"{weight}>{escape(words)}</text>'
        )
    return "".join(drawn)


def legend(colours: Mapping[str, str], hollow: set[str]) -> str:
    drawn = []
    for i, (name, colour) in enumerate(colours.items()):
        y = TOP + 18 * i
        x = WIDTH - RIGHT + 14
        paint = (
            f'fill="{colour}"'
            if name not in hollow
            else f'fill="none" stroke="{colour}" stroke-dasharray="3 2"'
        )
        drawn.append(f'<rect x="{x}" y="{y}" width="11" height="11" {paint}/>')
        drawn.append(f'<text x="{x + 17}" y="{y + 10}">{escape(name)}</text>')
    return "".join(drawn)


def svg(inside: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )


def nice(value: float) -> float:
    """A round number at or above a value, for the top of an axis."""
    if value <= 0:
        return 1.0
    power = float(10 ** math.floor(math.log10(value)))
    return next(
        step * power for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999
    )
