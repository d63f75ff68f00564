"""Suggest a known name that is similar to an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def there_are(name: str, known: Iterable[str], most: int | None = None) -> str:
    """Return the end of an error message, which lists the known names.

    If a known name is similar to `name`, the text begins with a question that suggests the known name. `most` limits
    how many names are listed.
    """
    listed = list(known)
    close = difflib.get_close_matches(name, listed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    more = " ..." if len(listed[:most]) < len(listed) else ""
    return f"{hint}there are {', '.join(listed[:most])}{more}"
