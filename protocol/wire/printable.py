"""Make text from other parties safe for the log, so that it can neither begin a new line nor move the cursor."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with unprintable characters replaced by Python's escapes: \x1b, \n, \u202e.

    Letters, digits, signs and spaces are not changed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Make each line of a text printable, and return the text.

    Use this function only for a text whose line ends come from our own code.
    """
    return "\n".join(map(printable, text.split("\n")))
