"""Find the kinds of an object's bytes, in the order of the bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


def merge_neighbours(parts: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the parts without empty parts, and with neighbours of one kind put together.

    Two lists that describe one layout in different ways then have the same result.
    """
    found: list[tuple[str, int]] = []
    for kind, size in parts:
        if size and found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + size)
        elif size:
            found.append((kind, size))
    return tuple(found)


class Layout:
    """The (kind, bytes) pairs of consecutive parts.

    A span is found by bisection, because the table that another party sends may have many parts.
    """

    def __init__(self, parts: Iterable[tuple[str, int]]) -> None:
        self.parts = merge_neighbours(parts)
        self._ends = list(accumulate(size for _, size in self.parts))

    def within(self, start: int, stop: int) -> dict[str, int]:
        """Return how many bytes of each kind lie in [start, stop)."""
        found: dict[str, int] = {}
        at = bisect_right(self._ends, start)
        while start < stop and at < len(self.parts):
            kind, end = self.parts[at][0], min(stop, self._ends[at])
            found[kind] = found.get(kind, 0) + end - start
            start, at = end, at + 1
        return found
