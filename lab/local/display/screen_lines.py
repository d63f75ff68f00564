"""Fit text to the lines of a terminal: cut long names, and count the items that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

GAP: Final = "  "
NAME_CELLS: Final = 24  # Maximum width of a name on a line with several names, in terminal cells.


def one_line(text: str, width: int, style: str = "") -> Text:
    line = Text(text, style=style, no_wrap=True)
    line.truncate(max(1, width), overflow="ellipsis")
    return line


def packed(cells: Sequence[Text], width: int, lines: int) -> list[Text]:
    """Put the cells next to each other on lines. If some cells do not fit, the last line has their number."""
    filled: list[list[Text]] = [[]]
    for cell in cells:
        cell = cell.copy()
        cell.truncate(max(1, width), overflow="ellipsis")
        if filled[-1] and _cells_of([*filled[-1], cell]) > width:
            filled.append([])
        filled[-1].append(cell)
    if len(filled) <= lines:
        return [_joined(line) for line in filled]
    kept = filled[: max(0, lines - 1)]
    more = one_line(f"... and {len(cells) - sum(map(len, kept))} more", width, "dim")
    return [*map(_joined, kept), more]


def _cells_of(line: Sequence[Text]) -> int:
    return sum(cell.cell_len for cell in line) + len(GAP) * (len(line) - 1)


def _joined(line: Sequence[Text]) -> Text:
    joined = Text(GAP).join(line)
    joined.no_wrap = True
    return joined
