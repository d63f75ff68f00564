"""Draw scatter plots as SVG: rows of square panels with dots, larger outlined marks, and a legend below."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from protofleet.lab.report.drawing.canvas import (
    LETTER_WIDTH,
    Canvas,
    Drawing,
    Picture,
    PictureTable,
    shortened,
)

Position = Sequence[float]  # The x and y of a point.
# Pixels between panels, pixels above a panel, and height of a row of the legend.
GAP, TITLE_HEIGHT, LEGEND_ROW = 14, 20, 20
NARROWEST = 200  # Minimum width of a panel in pixels.
SPARSE = 200  # In a panel with at most this number of points, the points are larger.

# Corners of each shape around (0, 0) at size 1. A circle has no corners.
SHAPES: Mapping[str, Sequence[tuple[float, float]]] = {
    "circle": (),
    "triangle": ((0, -1.35), (1.2, 0.8), (-1.2, 0.8)),
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "diamond": ((0, -1.45), (1.2, 0), (0, 1.45), (-1.2, 0)),
    "cross": ((-1.2, -0.4), (-0.4, -0.4), (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4),
              (1.2, 0.4), (0.4, 0.4), (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4)),
    "wedge": ((0, 1.35), (1.2, -0.8), (-1.2, -0.8)),
    "bar": ((-1.6, -0.6), (1.6, -0.6), (1.6, 0.6), (-1.6, 0.6)),
    "post": ((-0.6, -1.6), (0.6, -1.6), (0.6, 1.6), (-0.6, 1.6)),
    "star": tuple(
        (r * math.sin(math.pi * i / 5), -r * math.cos(math.pi * i / 5))
        for i, r in enumerate([1.5, 0.65] * 5)
    ),
}  # fmt: skip
# Shapes for points of devices. The star is left for the points of the server.
DOT_SHAPES = tuple(name for name in SHAPES if name != "star")


@dataclass(frozen=True)
class Dots:
    """Small points that have the same colour and shape."""

    positions: Sequence[Position]
    colour: str
    shape: str
    name: str
    faint: bool = False


@dataclass(frozen=True)
class Mark:
    """A large outlined point. The text `tag` is written to its upper right."""

    position: Position
    colour: str
    shape: str
    name: str
    size: float = 6.0  # Half of the mark's width in pixels.
    tag: str = ""


@dataclass(frozen=True)
class Panel:
    title: str
    dots: Sequence[Dots]
    marks: Sequence[Mark] = ()
    tags: Sequence[tuple[Position, str]] = ()  # Texts that are written at a position without a mark.

    def positions(self) -> list[Position]:
        return [p for d in self.dots for p in d.positions] + [m.position for m in self.marks]


@dataclass(frozen=True)
class LegendEntry:
    """An entry of the legend. An entry without a shape is a heading for the entries after it."""

    name: str
    colour: str = ""
    shape: str = ""
    outlined: bool = False


def scatter_plot(
    panels: Sequence[Panel], legend_entries: Sequence[LegendEntry], label: str, columns: int = 0
) -> str:
    """Draw the panels. On a wide page, `columns` panels are in one row."""
    columns = columns or (2 if len(panels) in (2, 4) else min(3, max(1, len(panels))))

    def draw(canvas: Canvas) -> Drawing:
        beside = columns if canvas.width > 2 * NARROWEST else 1
        side = min(440.0, (canvas.width - GAP * (beside - 1)) / beside)
        drawn = []
        for i, panel in enumerate(panels):
            x, y = (side + GAP) * (i % beside), (side + TITLE_HEIGHT + GAP) * (i // beside)
            drawn.append(f'<g transform="translate({x:.1f} {y:.1f})">{panel_svg(panel, side)}</g>')
        bottom = (side + TITLE_HEIGHT + GAP) * math.ceil(len(panels) / beside)
        entries, height = legend(legend_entries, bottom, canvas.width)
        return Drawing("".join(drawn) + entries, height)

    titles = ", ".join(panel.title for panel in panels)
    words = f"Points in the plane, in the panels {titles}."
    return Picture(label, words, draw, numbers_of(panels)).html()


def numbers_of(panels: Sequence[Panel]) -> PictureTable:
    """Return a table that counts the points of each name in each panel.

    The positions are not listed, because the numbers of a t-SNE have no meaning.
    """
    found = [
        Counter({dots.name: len(dots.positions) for dots in panel.dots})
        + Counter(f"{mark.name} (large)" for mark in panel.marks)
        for panel in panels
    ]
    names = list(dict.fromkeys(name for of_panel in found for name in of_panel))
    rows = [[name, *(str(of_panel[name]) for of_panel in found)] for name in names]
    return PictureTable(["points", *(panel.title for panel in panels)], rows)


def panel_svg(panel: Panel, side: float) -> str:
    scale = PanelScale.around(panel.positions(), side)
    elements = [
        f'<text x="1" y="13" class="title">{escape(panel.title)}</text>'
        f'<rect class="frame" x="0.5" y="{TITLE_HEIGHT}" width="{side - 1:.1f}" height="{side - 1:.1f}"/>'
    ]
    size = (1.1 if len(panel.positions()) > SPARSE else 1.8) + side / 260
    elements += [dots_path(dots, scale, size) for dots in panel.dots if len(dots.positions)]
    elements += [mark_path(mark, scale) for mark in panel.marks]
    elements += [tag(m.tag, scale.position(m.position), m.size, side) for m in panel.marks if m.tag]
    elements += [tag(text, scale.position(position), 0.0, side) for position, text in panel.tags]
    return "".join(elements)


def tag(text: str, at: tuple[float, float], distance: float, side: float) -> str:
    """Write a tag to the upper right of a mark, or to its left if the right side of the panel is too near."""
    width = len(text) * LETTER_WIDTH
    x, y = (at[0] + distance + 1, at[1] - distance + 3) if distance else (at[0] - width / 2, at[1] + 4)
    if x + width > side - 3:
        x = at[0] - distance - 1 - width
    return f'<text class="tag" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


@dataclass(frozen=True)
class PanelScale:
    """The conversion of positions to the pixels of a panel, with the same scale for x and y."""

    middle: tuple[float, float]
    scale: float
    side: float

    @classmethod
    def around(cls, positions: Sequence[Position], side: float) -> PanelScale:
        xs, ys = [float(p[0]) for p in positions] or [0.0], [float(p[1]) for p in positions] or [0.0]
        span = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
        return cls(((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2), (side - 44) / span, side)

    def position(self, position: Position) -> tuple[float, float]:
        x = self.side / 2 + (position[0] - self.middle[0]) * self.scale
        y = self.side / 2 - (position[1] - self.middle[1]) * self.scale
        return x, y + TITLE_HEIGHT


def dots_path(dots: Dots, scale: PanelScale, size: float) -> str:
    path = "".join(outline(dots.shape, *scale.position(position), size) for position in dots.positions)
    kind = "dots faint" if dots.faint else "dots"
    return f'<path class="{kind}" fill="{dots.colour}" d="{path}"><title>{escape(dots.name)}</title></path>'


def mark_path(mark: Mark, scale: PanelScale) -> str:
    path = outline(mark.shape, *scale.position(mark.position), mark.size)
    return f'<path class="mark" fill="{mark.colour}" d="{path}"><title>{escape(mark.name)}</title></path>'


def outline(shape: str, x: float, y: float, size: float) -> str:
    corners = SHAPES[shape]
    if not corners:
        r = f"{size:.1f}"
        return f"M{x - size:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * size:.1f} 0a{r} {r} 0 1 0 {-2 * size:.1f} 0z"
    start = f"M{x + corners[0][0] * size:.1f} {y + corners[0][1] * size:.1f}l"
    steps = (f"{(b[0] - a[0]) * size:.1f} {(b[1] - a[1]) * size:.1f}" for a, b in itertools.pairwise(corners))
    return f"{start}{' '.join(steps)}z"


def legend(entries: Iterable[LegendEntry], top: float, width: float) -> tuple[str, float]:
    """Draw the entries in rows as wide as the picture. Return the drawing, and the height of the picture.

    Each heading begins a new row.
    """
    elements: list[str] = []
    x, y = 0.0, top + 14
    for entry in entries:
        wanted = len(entry.name) * LETTER_WIDTH + 32 if entry.shape else 64
        if elements and (x + wanted > width or not entry.shape):
            x, y = 0.0, y + LEGEND_ROW
        if entry.shape:
            kind = "mark" if entry.outlined else "dots"
            size = 6.0 if entry.outlined else 4.5
            path = outline(entry.shape, x + 7, y - 4, size)
            elements.append(f'<path class="{kind}" fill="{entry.colour}" d="{path}"/>')
            name = shortened(entry.name, width - x - 19)
            elements.append(f'<text x="{x + 19:.1f}" y="{y:.1f}">{escape(name)}</text>')
        else:
            elements.append(f'<text class="title" x="{x:.1f}" y="{y:.1f}">{escape(entry.name)}</text>')
        x += wanted
    return "".join(elements), y + 8 if elements else top
