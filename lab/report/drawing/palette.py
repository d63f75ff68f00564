"""Define the colours of series by names; report.css gives each name a value for white and for dark paper.

Both sets have the hues of Okabe and Ito, which people with every kind of colour vision can distinguish, and
four more hues. Each colour has a contrast of at least 3:1 on its paper. Text never has these colours. Text
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
