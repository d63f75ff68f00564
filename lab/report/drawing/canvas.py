"""Draw a picture in two widths: for a wide page, and for a page as narrow as a phone.

A single picture would shrink on a phone, so that its letters would be only 6 pixels high. Therefore the page
contains both pictures, and a media query shows the picture that fits. The other picture is hidden, also from
screen readers. A table below the picture has the numbers of the picture.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from protofleet.lab.report.html_page import slug, table, unfolded

LETTER_WIDTH: Final = 6.6  # Average width of a letter, in pixels.
# Width of a letter in a wide font, in pixels. This width is used if another name follows on the same line.
WIDE_LETTER: Final = 7.4
MAX_RIGHT: Final = 300.0  # Maximum width of the names to the right of a picture, in pixels.
LEGEND_ROW: Final = 18.0  # Height of a row of a legend, in pixels.
KEY_WIDTH: Final = 18.0  # Width of the mark in a legend and of the gap after the mark, in pixels.
MOST_ROWS: Final = 400  # Maximum rows of a table of numbers. A longer table shows only every n-th row.


@dataclass(frozen=True)
class Canvas:
    name: str  # The CSS class of the picture in report.css.
    width: int
    left: int  # Pixels to the left of the axes, where numbers are written.
    right: int  # Minimum pixels to the right of the axes, where names are written.
    plot_height: int
    # Maximum number of names to the right. If there are more, the names are in rows below the picture.
    most_beside: int
    ticks: int  # Maximum number of marks on the x axis.

    @property
    def bottom(self) -> float:
        """Return the y position of the bottom of the axes."""
        return float(TOP + self.plot_height)

    def wrapped(self, text: str) -> list[str]:
        return textwrap.wrap(text, int((self.width - self.left) / LETTER_WIDTH)) or [""]


TOP: Final = 16
WIDE: Final = Canvas("wide", 760, 64, 130, 264, 18, 12)
NARROW: Final = Canvas("narrow", 360, 62, 12, 200, 0, 6)


@dataclass(frozen=True)
class Drawing:
    elements: str
    height: float


@dataclass(frozen=True)
class PictureTable:
    """The numbers of a picture, as a table."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self, title: str) -> str:
        kept, caption = list(self.rows), title
        if len(kept) > MOST_ROWS:
            step = -(-len(kept) // MOST_ROWS)
            kept = [*kept[:-1:step], kept[-1]]
            caption += f", every {step}th row of {len(self.rows)}"
        return unfolded(f"Numbers: {title}", table(f"Numbers: {caption}", self.head, kept))


@dataclass(frozen=True)
class Picture:
    """A picture with its title, its description and its numbers.

    The `title` must differ from the titles of the page's other pictures. The `description` is for readers who
    cannot see the picture.
    """

    title: str
    description: str
    draw: Callable[[Canvas], Drawing]
    numbers: PictureTable | None = None

    def html(self) -> str:
        drawn = self.svg(WIDE) + self.svg(NARROW)
        numbers = self.numbers.html(self.title) if self.numbers and self.numbers.rows else ""
        return f"<figure>{drawn}{numbers}</figure>"

    def svg(self, canvas: Canvas) -> str:
        name, drawing = f"{slug(self.title)}-{canvas.name}", self.draw(canvas)
        return (
            f'<svg class="{canvas.name}" viewBox="0 0 {canvas.width} {drawing.height:.0f}" role="img" '
            f'aria-labelledby="{name}" aria-describedby="{name}-text" xmlns="http://www.w3.org/2000/svg">'
            f'<title id="{name}">{escape(self.title)}</title>'
            f'<desc id="{name}-text">{escape(self.description)}</desc>{drawing.elements}</svg>'
        )


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a mark, followed by the name as text."""

    name: str
    colour: str
    line: bool = False  # True if the mark is a line, False if it is a box.
    dash: str = ""
    outlined: bool = False
    faint: bool = False
    bold: bool = False

    @property
    def fill(self) -> str:
        return fill_of(self.colour, self.outlined, self.faint)

    def at(self, x: float, y: float, room: float) -> str:
        """Draw the entry. `y` is the middle of its letters, and `room` is the maximum width in pixels."""
        weight = ' class="bold"' if self.bold else ""
        name = shortened(self.name, room - KEY_WIDTH)
        text = f'<text x="{x + KEY_WIDTH:.1f}" y="{y + 4:.1f}"{weight}>{escape(name)}</text>'
        if self.line:
            width, dash = 3.5 if self.bold else 2, f' stroke-dasharray="{self.dash}"' if self.dash else ""
            ends = f'x1="{x:.1f}" x2="{x + 13:.1f}" y1="{y:.1f}" y2="{y:.1f}"'
            return f'<line {ends} stroke="{self.colour}" stroke-width="{width}"{dash}/>{text}'
        box = f'x="{x:.1f}" y="{y - 5.5:.1f}" width="11" height="11"'
        return f"<rect {box} {self.fill}/>{text}"


def fill_of(colour: str, outlined: bool = False, faint: bool = False) -> str:
    if outlined:
        return f'fill="none" stroke="{colour}" stroke-dasharray="3 2"'
    return f'fill="{colour}" fill-opacity="0.4" stroke="{colour}"' if faint else f'fill="{colour}"'


def shortened(text: str, room: float) -> str:
    most = max(2, int(room / LETTER_WIDTH))
    return text if len(text) <= most else text[: most - 1] + "…"


def right_margin(names: Iterable[str], gap: float) -> float:
    """Return the width of names to the right of the axes, in pixels. `gap` is the space before the names."""
    return min(MAX_RIGHT, max(WIDE.right, gap + LETTER_WIDTH * max(map(len, names), default=0)))


def keys_beside(keys: Sequence[Key], x: float, room: float) -> tuple[str, float]:
    """Draw the entries in a column. Return the drawing, and the y position below the last entry."""
    drawn = "".join(key.at(x, TOP + 5.5 + LEGEND_ROW * i, room) for i, key in enumerate(keys))
    return drawn, TOP + LEGEND_ROW * len(keys)


def keys_below(keys: Sequence[Key], top: float, canvas: Canvas) -> tuple[str, float]:
    """Draw the entries in rows as wide as the picture. Return the drawing, and the y position below the last row."""
    x, y, drawn = 0.0, top + 10, []
    for key in keys:
        width = KEY_WIDTH + WIDE_LETTER * len(key.name) + 10
        if x and x + width > canvas.width:
            x, y = 0.0, y + LEGEND_ROW
        drawn.append(key.at(x, y, canvas.width - x))
        x += width
    return "".join(drawn), y + 10 if keys else top


def end_labels(ends: Sequence[tuple[float, float, Key]], canvas: Canvas) -> str:
    """Draw the name of each line at the end of the line.

    Names that would overlap are moved apart. They stay inside the picture if there is enough space.
    """
    ends = sorted(ends, key=lambda end: (end[0], end[2].name))
    ys: list[float] = []
    for y, _, _ in ends:
        ys.append(max(y, ys[-1] + 14) if ys else y)
    for above, i in enumerate(reversed(range(len(ys)))):
        ys[i] = min(ys[i], canvas.bottom - 14 * above)
    return "".join(key.at(x + 8, y, canvas.width - x - 8) for y, (_, x, key) in zip(ys, ends, strict=True))
