"""What a name that is unknown may have been meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def there_are(name: str, known: Iterable[str], most: int | None = None) -> str:
    """For the end of a message: the nearest of them, where one is near, and all (or `most`) of them."""
    listed = list(known)
    close = difflib.get_close_matches(name, listed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    more = " ..." if len(listed[:most]) < len(listed) else ""
    return f"{hint}there are {', '.join(listed[:most])}{more}"
