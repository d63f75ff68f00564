"""The log's lines: what others have said stands in them as text, and can neither begin a line nor move a cursor."""

from __future__ import annotations


def printable(text: str) -> str:
    """With everything that is no letter, digit, sign or space written as Python writes it: \\x1b, \\n, \\u202e."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines of ours."""
    return "\n".join(map(printable, text.split("\n")))
