"""Make text from other parties safe for the log: it can neither begin a line nor move a cursor."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with unprintable characters written as Python writes them: \x1b, \n, \u202e.

    Letters, digits, signs and spaces stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return our own text of several lines with each line made printable."""
    return "\n".join(map(printable, text.split("\n")))
