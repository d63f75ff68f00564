"""Define the colours of series by names. report.css gives each name a colour for white pages and one for dark pages.

White pages and dark pages use the same hues: the hues of Okabe and Ito, which people with every kind of colour
vision can distinguish, and four more hues. Each colour has a contrast of at least 3:1 on its page. Text never has
these colours. A mark in the colour of the series is drawn next to the text.
"""

from __future__ import annotations

from typing import Final

COLOURS: Final = tuple(f"var(--series-{i})" for i in range(10))
GREY: Final = COLOURS[6]
INK: Final = "var(--ink)"
DASHES: Final = ("", "7 3", "2 3")  # Dash patterns, which are used if there are more series than colours.


def line_style(i: int) -> tuple[str, str]:
    """Return the colour and the dash pattern of series i."""
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
