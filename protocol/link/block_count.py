"""Count the bytes of an object's blocks by kind.

An object begins with a table that says to which array each byte belongs. Blocks that arrive before the table
is complete are counted later.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from protofleet.protocol.storage.partial import Partial
from protofleet.protocol.wire.arrays import MAX_TABLE, Body
from protofleet.protocol.wire.kinds import CONTROL, Kinds
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.reasons import Rejected

LENGTH = 4  # number of bytes of the field that gives the length of the table


@dataclass(frozen=True, slots=True)
class CountedSpan:
    """A counted span of an object's bytes. `fresh` is true if these bytes have arrived for the first time."""

    size: int
    tensors: Mapping[str, int]
    fresh: bool


class BlockCount:
    """The byte count of one object that is being received."""

    def __init__(self, partial: Partial, kinds: Kinds) -> None:
        self._partial, self._kinds = partial, kinds
        self._layout: Layout | None = None
        # The spans that are not counted yet: first byte, byte after the last, and whether the span arrived
        # for the first time.
        self._waiting: list[tuple[int, int, bool]] = []

    @property
    def waiting(self) -> int:
        """Return the number of bytes that are not counted yet."""
        return sum(stop - start for start, stop, _ in self._waiting)

    def came(self, start: int, stop: int, fresh: bool) -> list[CountedSpan]:
        """Add a span, and return all spans that can be counted now.

        Return an empty list until the table at the start of the object has arrived.
        """
        self._waiting.append((start, stop, fresh))
        self._layout = self._layout or self._layout_of_table()
        return self._counted(self._layout) if self._layout else []

    def end(self) -> list[CountedSpan]:
        """Return the spans that could not be counted before the end of the transfer.

        The table has not arrived, so the kinds of these spans are taken from the parts of the manifest. A manifest
        knows only the eight kinds of the wire, so bytes of other arrays are counted as control.
        """
        parts = self._partial.manifest.parts
        declared = ((kind if kind in self._kinds.declared else CONTROL, size) for kind, size in parts)
        return self._counted(Layout(declared))

    def _counted(self, layout: Layout) -> list[CountedSpan]:
        waiting, self._waiting = self._waiting, []
        return [CountedSpan(stop - start, layout.within(start, stop), new) for start, stop, new in waiting]

    def _layout_of_table(self) -> Layout | None:
        """Return the layout that the table describes, or None if the table is not complete.

        If the table cannot be read, return a layout that counts all bytes as control. An object with such a table is
        refused when all of its blocks have arrived.
        """
        size = self._partial.manifest.size
        if size < LENGTH:
            return Layout([(CONTROL, size)])
        if not self._partial.begins_with(LENGTH):
            return None
        (length,) = struct.unpack("<I", self._partial.read(0, LENGTH))
        if length > min(MAX_TABLE, size - LENGTH):
            return Layout([(CONTROL, size)])
        if not self._partial.begins_with(LENGTH + length):
            return None
        try:
            return Body(self._partial.read, size).layout_by(self._kinds)
        except Rejected:
            return Layout([(CONTROL, size)])
