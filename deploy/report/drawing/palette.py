"""Colours of series, as names that report.css gives a value on white and another on dark paper.

Both sets are Okabe and Ito's hues, distinguishable with every kind of colour vision, and four more, made dark or
light enough to have a contrast of 3:1 on their paper. No text has them: it is ink, with a mark of the colour beside.
"""

from __future__ import annotations

from typing import Final

COLOURS: Final = tuple(f"var(--series-{i})" for i in range(10))
GREY: Final = COLOURS[6]
INK: Final = "var(--ink)"
DASHES: Final = ("", "7 3", "2 3")  # for more series than colours


def line_style(i: int) -> tuple[str, str]:
    """Colour and dashes of the i-th series."""
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
