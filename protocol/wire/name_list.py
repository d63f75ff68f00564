"""Write a list of names that is bounded in length, for log lines, errors and reports."""

from __future__ import annotations

from collections.abc import Sequence


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and the number of the others: "a, b and 3 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
