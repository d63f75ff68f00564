"""Records, bundles and deltas with repaired sizes: any bytes become the recipe of a coded array.

A reader refuses a record of a wrong size before it decodes a number, and nearly every change of a record makes its
size wrong. So these functions make records of the right size from any bytes, and their content stays arbitrary.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from protofleet.protocol.coding import forms, rows, ternary
from protofleet.protocol.coding.bits import bytes_of, pack_rice
from protofleet.protocol.coding.bundle import DTYPE_NAMES, NAMED, PACKED, REFERENCE, VERSION
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.coding.leb import pack_one
from protofleet.protocol.wire.arrays import DTYPES

Layout: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]  # Name -> dtype and shape.
SHAPES = ((40,), (4, 10), (0, 3), (), (2, 3, 5), (300,), (64, 1), (40, 40))
WHOLE = ("int64", "bool", "int8", "int16", "int32", "uint8")
NEW = "weights.new"  # An array that no reference has.
TAME_BYTES = bytes(0 if byte == 128 else byte for byte in range(256))
TAME_HALVES = bytes(byte // 16 % 15 * 16 + byte % 16 % 15 for byte in range(256))


class Recipe:
    """Bytes that are read from the front; after the last byte, zeros are read."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self.is_damaged = (
            False  # A byte of a bundle was changed, so its arrays may have other dtypes and shapes.
        )

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found + bytes(size - len(found))

    def byte(self) -> int:
        return self.take(1)[0]


def resized(data: bytes, size: int) -> bytes:
    """Return the data, cut or repeated to this size."""
    return (data * (size // len(data) + 1))[:size] if data else bytes(size)


def padded(data: bytes, bits: int) -> bytes:
    """Return so many bits of the data, and zeros in the unused bits of the last byte."""
    found = bytearray(resized(data, bytes_of(bits)))
    if bits % 8:
        found[-1] &= (1 << bits % 8) - 1
    return bytes(found)


def record(form: Form, data: bytes, shape: tuple[int, ...], dtype: str, most: int) -> bytes:
    """Return a record of the right size whose content is taken from the data."""
    count = math.prod(shape)
    match form:
        case Form.SAME:
            return b""
        case Form.FLOAT16 | Form.BFLOAT16:
            return resized(data, 2 * count)
        case Form.RICE:
            return _rice(data, shape)
        case Form.TERNARY:
            return _ternary(data, count, most)
        case Form.INTS:
            return _ints(data, count)
        case Form.EXACT | Form.PLANES:
            found = resized(data, count * DTYPES[dtype].itemsize)
            return bytes(byte & 1 for byte in found) if dtype == "bool" and len(data) % 4 else found
    number, grid = rows.rows_of(shape)[0], forms.GRIDS[form]
    codes = padded(data[2 * number :], count * grid.bits)
    if grid.signed and is_tame(data):  # The lowest code of 8 bits, and the highest of 4 bits, are refused.
        codes = codes.translate(TAME_BYTES if grid.bits == 8 else TAME_HALVES)
    return _scales(data, number) + codes


def is_tame(data: bytes) -> bool:
    """Return whether a record gets only scales and codes that a reader takes, as in 7 of 8 inputs."""
    return bool(data) and data[0] % 8 > 0


def _scales(data: bytes, number: int) -> bytes:
    """Return the scales of rows; a reader takes a scale that is finite and not negative."""
    found = np.frombuffer(resized(data[: 2 * number], 2 * number), "<u2")
    if is_tame(data):
        found = found & (rows.SIGN - 1)
        found = np.where(found & rows.EXPONENT == rows.EXPONENT, found >> 1, found).astype("<u2")
    return found.tobytes()


def _rice(data: bytes, shape: tuple[int, ...]) -> bytes:
    number, count = rows.rows_of(shape)[0], math.prod(shape)
    width = data[2 * number] % 4 if len(data) > 2 * number else 0
    codes = np.frombuffer(resized(data[2 * number + 1 :], count), np.uint8) % (15 if is_tame(data) else 16)
    return _scales(data, number) + bytes((width,)) + pack_rice(codes.astype(np.int64), width)


def _ternary(data: bytes, numbers: int, most: int) -> bytes:
    recipe = Recipe(data)
    count = int.from_bytes(recipe.take(2), "little") % (min(numbers, most) + 2)
    (size,) = np.frombuffer(recipe.take(4), "<f4") if count else (0.0,)
    width = recipe.byte() % 8
    most_gap = max(1, numbers // max(1, count))
    gaps = np.frombuffer(resized(data[7:], count), np.uint8).astype(np.int64) % most_gap
    head = ternary.HEAD.pack(count, abs(float(size)), width)
    return head + (pack_rice(gaps, width) + padded(data[5:], count) if count else b"")


def _ints(data: bytes, count: int) -> bytes:
    """Return so many whole numbers; a byte below 128 is the last byte of a number."""
    ends = [place for place, byte in enumerate(data) if byte < 128][:count]
    return data[: ends[-1] + 1 if ends else 0] + b"\1" * (count - len(ends))


def bundle(recipe: Recipe, known: Layout, allowed: Sequence[Form], most: int) -> tuple[bytes, Layout]:
    """Return a bundle with right sizes, and the dtypes and shapes of its arrays."""
    flags = recipe.byte()
    names = sorted([*known, NEW] if flags & NAMED else known)
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    rest = b"".join(pack_one(len(one)) + one.encode() for one in names) if flags & NAMED else b""
    rest = pack_one(len(names)) + rest if flags & NAMED else rest
    for name in names:
        made, layout[name] = _array(recipe, known.get(name), allowed, most)
        rest += made
    if flags & 4:  # One byte is changed, anywhere.
        recipe.is_damaged = True
        at, change = int.from_bytes(recipe.take(2), "little") % max(1, len(rest)), recipe.byte()
        rest = rest[:at] + bytes((rest[at] ^ change,)) + rest[at + 1 :] if rest else rest
    head = bytes((VERSION, flags & (NAMED | PACKED)))
    if not flags & PACKED:
        return head + rest, layout
    length = len(rest) + (recipe.byte() if flags & 8 and flags & 16 else 0)
    return head + length.to_bytes(4, "little") + zlib.compress(rest, 1), layout


def _array(
    recipe: Recipe, like: tuple[str, tuple[int, ...]] | None, allowed: Sequence[Form], most: int
) -> tuple[bytes, tuple[str, tuple[int, ...]]]:
    number, kind, size = recipe.byte(), recipe.byte(), recipe.byte()
    form = allowed[number % len(allowed)]
    has_reference = like is not None and form not in (Form.EXACT, Form.PLANES) and number & 128 > 0
    if has_reference or (like and form in forms.NEED_REFERENCE):
        assert like is not None
        dtype, shape = like
        head = bytes((form | REFERENCE,))
    else:
        dtype = "float32" if form in forms.FOR_FLOAT32 else DTYPE_NAMES[kind % len(DTYPE_NAMES)]
        if form is Form.INTS:
            dtype = WHOLE[kind % len(WHOLE)]
        shape = SHAPES[kind >> 4 & 7]
        dims = b"".join(map(pack_one, shape))
        head = bytes((form, DTYPE_NAMES.index(dtype), len(shape))) + dims
    content = record(form, recipe.take(2 * size), shape, dtype, most)
    return head + pack_one(len(content)) + content, (dtype, shape)
