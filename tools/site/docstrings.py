"""Turn our docstrings into reStructuredText for Sphinx. They are plain text with code in backticks."""

from __future__ import annotations

import re
from typing import Final

CODE: Final = re.compile(r"(`[^`]+`)")
MARKS: Final = re.compile(r"([\\*_|])")


def to_restructured_text(lines: list[str]) -> list[str]:
    """Return the lines with code as literals. Every letter that reStructuredText would interpret is escaped."""
    text = "\n".join(lines)
    return "".join(
        f"``{part[1:-1]}``" if CODE.fullmatch(part) else MARKS.sub(r"\\\1", part) for part in CODE.split(text)
    ).splitlines()
