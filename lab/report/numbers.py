"""Write numbers as text, for pages, tables and the terminal."""

from __future__ import annotations

from typing import Final

NONE: Final = "-"  # The text that is shown for a missing number.


def percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def percent_points(value: float) -> str:
    return f"{100 * value:.1f}"


def one_place(value: float) -> str:
    return f"{value:.1f}"


def two_places(value: float) -> str:
    return f"{value:.2f}"


def plain_number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def three_places(value: float) -> str:
    return f"{value:.3f}"
