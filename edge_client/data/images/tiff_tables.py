"""A check that the tables in a TIFF file are small.

The check is made before Pillow reads the file, because Pillow makes a Python object of each number in the tables.
"""

from __future__ import annotations

import struct
from typing import Final

from protofleet.edge_client.data.plain_file import UnusableError

PREFIXES: Final = {b"II*\0", b"MM\0*", b"II\0*", b"MM*\0", b"II+\0", b"MM\0+"}
BYTES: Final = {1, 2, 7}  # types of TIFF fields that Pillow reads as one bytes object
TILE_SIDES: Final = {322, 323}
MORE_TABLES: Final = {34665, 34853, 40965}  # tags whose value is the position of another table
MOST_ROWS: Final = 65_535
# Largest count of numbers in all tables together. A picture has two numbers for each strip or tile. Pillow takes 300
# bytes and 12 microseconds for each number.
MOST_NUMBERS: Final = 1 << 18


def tile_pixels(content: bytes) -> int:
    """Return the number of pixels in a tile of a TIFF file.

    Return 1 for a file without tiles, and for a file of another format.

    Raise UnusableError if the tables hold more numbers than a picture needs.
    """
    if content[:4] not in PREFIXES:
        return 1
    order = "<" if content[:2] == b"II" else ">"
    big = b"+" in content[2:4]
    place, count, row = ("8xQ", "Q", "HHQQ") if big else ("4xI", "H", "HHII")
    tables, seen, numbers, tile = [*_at(content, order + place, 0)], set[int](), 0, 1
    while tables:
        table = tables.pop()
        if table in seen:
            continue
        seen.add(table)
        (rows,) = _at(content, order + count, table) or (0,)
        first = table + struct.calcsize(order + count)
        for number in range(min(rows, MOST_ROWS + 1)):
            at = first + number * struct.calcsize(order + row)
            tag, kind, many, value = _at(content, order + row, at) or (0, 0, 0, 0)
            numbers += 1 if kind in BYTES else many
            if numbers > MOST_NUMBERS or rows > MOST_ROWS:
                raise UnusableError(
                    f"the tables of this TIFF hold more than {MOST_NUMBERS:,} numbers; save it as a PNG"
                )
            if tag in TILE_SIDES:
                # A big-endian value of 16 bits is in the first two bytes of the field.
                short = kind == 3 and order == ">"
                tile *= max(1, value >> (48 if big else 16) if short else value)
            if tag in MORE_TABLES:
                tables.append(value)
    return tile


def _at(content: bytes, form: str, at: int) -> tuple[int, ...]:
    """Unpack the values at a position; return () if the file is too short."""
    return struct.unpack_from(form, content, at) if at + struct.calcsize(form) <= len(content) else ()
