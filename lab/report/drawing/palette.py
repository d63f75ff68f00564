"""Define the colours of series by names; report.css gives each name a value for white and for dark paper.

Both sets have the hues of Okabe and Ito, which are distinguishable with every kind of colour vision, and four
more. They are dark or light enough to have a contrast of 3:1 on their paper. No text has these colours: text
is in ink, with a mark of the colour next to it.
"""

from __future__ import annotations

from typing import Final

COLOURS: Final = tuple(f"var(--series-{i})" for i in range(10))
GREY: Final = COLOURS[6]
INK: Final = "var(--ink)"
DASHES: Final = ("", "7 3", "2 3")  # Dashes for more series than there are colours.


def line_style(i: int) -> tuple[str, str]:
    """Return the colour and the dashes of the i-th series."""
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
