"""Draw two axes: convert values to pixels, and write the numbers along the axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from protofleet.lab.report.drawing.canvas import WIDE, Canvas

Format: TypeAlias = Callable[[float], str]


@dataclass(frozen=True)
class Axes:
    """The ranges of both axes, with methods that convert values to pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    right: float = WIDE.right  # Pixels to the right of the axes, where names are written.
    log_x: bool = False
    canvas: Canvas = WIDE

    def x(self, value: float) -> float:
        low, high = self.x_low, self.x_high
        if self.log_x:
            value, low, high = math.log(value), math.log(low), math.log(high)
        left = self.canvas.left
        return left + (value - low) / (high - low) * (self.canvas.width - left - self.right)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return self.canvas.bottom - share * self.canvas.plot_height

    def svg(self, y_format: Format, x_label: str, x_format: Format | None = None) -> str:
        return self._rows(y_format) + self._columns(x_format) + self._label(x_label)

    def height(self, x_label: str) -> float:
        """Return the height of the axes and of the text below them, in pixels."""
        return self.canvas.bottom + 26 + 14 * len(self.canvas.wrapped(x_label))

    def _rows(self, y_format: Format) -> str:
        left, end = self.canvas.left, self.canvas.width - self.right
        drawn = []
        for i in range(5):
            value = self.y_low + (self.y_high - self.y_low) * i / 4
            y, kind = self.y(value), "grid" if i else "axis"
            drawn.append(f'<line class="{kind}" x1="{left}" x2="{end:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            drawn.append(f'<text x="{left - 8}" y="{y + 4:.1f}" class="end">{escape(y_format(value))}</text>')
        return "".join(drawn)

    def _columns(self, x_format: Format | None) -> str:
        drawn = []
        for value in self.x_ticks(self.canvas.ticks // 2 if x_format else self.canvas.ticks):
            text = x_format(value) if x_format else f"{value:.0f}"
            place = f'x="{self.x(value):.1f}" y="{self.canvas.bottom + 18:.0f}"'
            drawn.append(f'<text {place} class="middle">{escape(text)}</text>')
        return "".join(drawn)

    def _label(self, text: str) -> str:
        middle, top = (self.canvas.left + self.canvas.width - self.right) / 2, self.canvas.bottom + 36
        return "".join(
            f'<text x="{middle:.1f}" y="{top + 14 * i:.0f}" class="middle">{escape(line)}</text>'
            for i, line in enumerate(self.canvas.wrapped(text))
        )

    def x_ticks(self, limit: int) -> list[float]:
        """Return the values at which the x axis has marks.

        Each value is a multiple of 1, 2 or 5 times a power of ten. On a logarithmic axis, the marks are powers of
        ten. If there are few powers of ten, 2 and 5 times a power of ten are also marks.
        """
        if self.log_x:
            first, last = math.floor(math.log10(self.x_low)), math.ceil(math.log10(self.x_high))
            factors = (1,) if last - first > 3 or limit < 4 else (1, 2, 5)
            marks = [t * 10.0**power for power in range(first, last + 1) for t in factors]
            found = [m for m in marks if self.x_low * 0.999 <= m <= self.x_high * 1.001]
            return found[:: -(-len(found) // max(limit, 2))] if limit < 4 else found
        smallest = max(1.0, (self.x_high - self.x_low) / limit)
        power = 10 ** math.floor(math.log10(smallest))
        step = next(t * power for t in (1, 2, 5, 10) if t * power >= smallest * 0.999)
        return [i * step for i in range(math.ceil(self.x_low / step), math.floor(self.x_high / step) + 1)]


def round_axis_end(value: float) -> float:
    """Return the upper end of an axis: a round number that is at least 99.9 % of the value.

    A quarter of this number is also a round number.
    """
    if value <= 0:
        return 1.0
    power = float(10 ** math.floor(math.log10(value)))
    return next(
        step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value * 0.999
    )
