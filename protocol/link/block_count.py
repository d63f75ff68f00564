"""Bytes of an object's blocks by kind. The table that the object begins with says which byte is of which array, so
blocks that come before it wait to be counted."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from protofleet.protocol.storage.partial import Partial
from protofleet.protocol.wire.arrays import MAX_TABLE, Body
from protofleet.protocol.wire.kinds import CONTROL, Kinds
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.reasons import Rejected

LENGTH = 4  # bytes that say how long the table is


@dataclass(frozen=True, slots=True)
class CountedSpan:
    """Some bytes of an object: how many, of which kinds, and whether they came for the first time."""

    size: int
    tensors: Mapping[str, int]
    fresh: bool


class BlockCount:
    """The count of one object that is being received."""

    def __init__(self, partial: Partial, kinds: Kinds) -> None:
        self._partial, self._kinds = partial, kinds
        self._layout: Layout | None = None
        self._waiting: list[tuple[int, int, bool]] = []  # [start, stop) and whether it is new

    @property
    def waiting(self) -> int:
        """Bytes that are not counted yet."""
        return sum(stop - start for start, stop, _ in self._waiting)

    def came(self, start: int, stop: int, fresh: bool) -> list[CountedSpan]:
        """Return this span, and those that waited, once the table is here; until then nothing."""
        self._waiting.append((start, stop, fresh))
        self._layout = self._layout or self._layout_of_table()
        return self._counted(self._layout) if self._layout else []

    def end(self) -> list[CountedSpan]:
        """Return what still waits: the table has not come, so the manifest's parts say what they can.

        These know the eight kinds of the wire; bytes of other arrays are counted as control.
        """
        parts = self._partial.manifest.parts
        declared = ((kind if kind in self._kinds.declared else CONTROL, size) for kind, size in parts)
        return self._counted(Layout(declared))

    def _counted(self, layout: Layout) -> list[CountedSpan]:
        waiting, self._waiting = self._waiting, []
        return [CountedSpan(stop - start, layout.within(start, stop), new) for start, stop, new in waiting]

    def _layout_of_table(self) -> Layout | None:
        """A table that cannot be read makes all of it control: whoever finishes the object refuses the whole."""
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
