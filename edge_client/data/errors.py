"""What goes wrong with data."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be used. One line: what is wrong, where it was looked for, what to do about it."""
