"""Convert named arrays to bytes and back.

The bytes are a msgpack table, then the raw little-endian bytes of every array, without gaps.

    body := u32 table length | table | raw bytes          table := [[name, dtype, [shape]], ...]

The size of the whole body follows from the table. So a body is checked before memory is allocated for it, and
one array can be read without the others. Reading a body never executes code.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, runtime_checkable

import msgpack
import numpy as np

from protofleet.protocol.wire.kinds import CONTROL, Kinds
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.messages import Array, Arrays
from protofleet.protocol.wire.reasons import Reason, Rejected

KINDS: Final = frozenset(
    {"weights", "prototypes", "anchors", "classifier", "amplifier", "features", "labels", "counts"}
)
# These kinds are used in the parts of a manifest, and determine the order of arrays in a body. A link counts bytes by
# these kinds until it knows the method of the run.
ON_THE_WIRE: Final = Kinds(KINDS)
DTYPES: Final = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
}
NAMES: Final = {dtype: name for name, little in DTYPES.items() for dtype in (little, little.newbyteorder())}
MAX_TABLE: Final = 1 << 20
MAX_ARRAYS: Final = 16_384
MAX_NAME: Final = 200
MAX_DIMS: Final = 8
# Largest count of numbers in one array. An empty dimension counts as 1. NumPy cannot make a shape of more
# than 2**63 bytes.
MAX_NUMBERS: Final = 1 << 40


@runtime_checkable
class SlicedArrays(Protocol):
    """Arrays that may be on the disk: each dtype, shape or slice is read only on request."""

    def __contains__(self, name: object) -> bool: ...
    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]: ...
    def flat(self, name: str, start: int, stop: int) -> Array: ...


Read = Callable[[int, int], bytes | memoryview]  # reads the bytes [start, stop) of the body


def kind_of(name: str) -> str:
    """Return the kind of an array in a manifest: one of the eight kinds of versions 1.0 and 1.1, or control.

    A meter uses the kinds that the method declares instead.
    """
    return ON_THE_WIRE.of(name)


def ordered(arrays: Arrays) -> list[str]:
    """Return the names sorted by kind, so that arrays of one kind are neighbours in the body."""
    return sorted(arrays, key=lambda name: (kind_of(name), name))


def encode(arrays: Arrays) -> Iterator[bytes | memoryview]:
    """Return the body in pieces: the table first, then one piece for each array.

    Each array is read only when its piece is made.
    """
    return encoded(arrays)[1]


def parts(arrays: Arrays) -> tuple[tuple[str, int], ...]:
    """Return the parts of the body as (kind, bytes), in their order. The table counts as control."""
    return encoded(arrays)[0]


def encoded(arrays: Arrays) -> tuple[tuple[tuple[str, int], ...], Iterator[bytes | memoryview]]:
    """Return the results of `parts` and `encode`, but make the table only once."""
    names = ordered(arrays)
    head = _head(arrays, names)
    sizes: dict[str, int] = {}
    for name in names:
        kind = kind_of(name)
        sizes[kind] = sizes.get(kind, 0) + arrays[name].nbytes
    return (("control", len(head)), *sizes.items()), _pieces(arrays, names, head)


def _pieces(arrays: Arrays, names: list[str], head: bytes) -> Iterator[bytes | memoryview]:
    yield head
    for name in names:
        value = arrays[name]  # the array is read only once, because it may be on the disk
        value = np.ascontiguousarray(value, dtype=DTYPES[NAMES[value.dtype]])
        if value.size:
            yield value.reshape(-1).view(np.uint8).data


def _head(arrays: Arrays, names: list[str]) -> bytes:
    table = []
    for name in names:
        value = arrays[name]
        dtype = NAMES.get(value.dtype)  # this look-up is ten times as fast as NumPy's `dtype.name`
        if dtype is None:
            raise TypeError(f"{name} is {value.dtype}; the type must be one of {', '.join(DTYPES)}")
        if not 0 < len(name.encode()) <= MAX_NAME or value.ndim > MAX_DIMS:
            raise ValueError(
                f"array {name!r} {value.shape}: the name must have 1 to {MAX_NAME} bytes, and the array may "
                f"have at most {MAX_DIMS} dimensions"
            )
        table.append([name, dtype, list(value.shape)])
    packed: bytes = msgpack.packb(table)
    if len(table) > MAX_ARRAYS or len(packed) > MAX_TABLE:
        raise ValueError(
            f"the body has {len(table)} arrays; a body may have at most {MAX_ARRAYS} arrays, and its table at most "
            f"{MAX_TABLE} bytes"
        )
    return struct.pack("<I", len(packed)) + packed


class Body(Mapping[str, Array]):
    """The arrays inside a body; an array is read each time that it is used, and is not kept in memory."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._places: dict[str, tuple[np.dtype[np.generic], tuple[int, ...], int]] = {}
        offset, table = _table(read, size)
        self._start = offset
        for row in table:
            name, dtype, shape = _row(row)
            if name in self._places:
                raise Rejected(Reason.BAD_BODY, f"{name} is in the table twice")
            self._places[name] = (dtype, shape, offset)
            offset += math.prod(shape) * dtype.itemsize
            if offset > size:
                raise Rejected(
                    Reason.BAD_BODY, f"{name} ends at byte {offset}, but the body ends at byte {size}"
                )
        self._end = offset
        if offset != size:
            raise Rejected(Reason.BAD_BODY, f"the table describes {offset} bytes, but the body has {size}")

    @property
    def kinds(self) -> dict[str, int]:
        """Return the bytes of arrays by kind, without reading any array."""
        sizes: dict[str, int] = {}
        for name, (dtype, shape, _) in self._places.items():
            sizes[kind_of(name)] = sizes.get(kind_of(name), 0) + math.prod(shape) * dtype.itemsize
        return sizes

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """Return the parts of the body as (kind, bytes), as the function `parts` does for arrays."""
        return (("control", self._start), *self.kinds.items())

    @property
    def layout(self) -> tuple[tuple[str, int], ...]:
        """Return the parts of the body as (kind, bytes), with neighbours of the same kind merged."""
        return self.layout_by(ON_THE_WIRE).parts

    def layout_by(self, kinds: Kinds) -> Layout:
        """Return the layout of the body; the bytes of each array are counted under one of these kinds."""
        sizes = ((kinds.of(n), math.prod(s) * d.itemsize) for n, (d, s, _) in self._places.items())
        return Layout(((CONTROL, self._start), *sizes))

    def sizes(self, kinds: Kinds) -> dict[str, int]:
        """Return the bytes of each kind in the whole body; the table counts as control."""
        return self.layout_by(kinds).within(0, self._end)

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape of an array, without reading the array."""
        dtype, shape, _ = self._places[name]
        return NAMES[dtype], shape

    def __getitem__(self, name: str) -> Array:
        dtype, shape, offset = self._places[name]
        return self._numbers(dtype, offset, math.prod(shape)).reshape(shape)

    def flat(self, name: str, start: int, stop: int) -> Array:
        """Return the numbers [start, stop) of the flattened array; no other numbers are read."""
        dtype, _, offset = self._places[name]
        return self._numbers(dtype, offset + start * dtype.itemsize, stop - start)

    def _numbers(self, dtype: np.dtype[np.generic], start: int, count: int) -> Array:
        data = self._read(start, start + count * dtype.itemsize)
        # A sender may have sent a byte above 1, which would count as more than one True.
        if dtype == np.bool_:
            return np.not_equal(np.frombuffer(data, np.uint8), 0)
        return np.frombuffer(data, dtype=dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._places  # Mapping.__contains__ would read the array.

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _table(read: Read, size: int) -> tuple[int, list[object]]:
    if size < 4:
        raise Rejected(Reason.BAD_BODY, f"{size} bytes are too few for a body")
    (length,) = struct.unpack("<I", read(0, 4))
    if length > min(MAX_TABLE, size - 4):
        raise Rejected(
            Reason.BAD_BODY, f"the table has {length} bytes, which is too many for a body of {size} bytes"
        )
    try:
        table = msgpack.unpackb(
            read(4, 4 + length),
            max_array_len=MAX_ARRAYS,
            max_map_len=0,
            max_bin_len=0,
            max_ext_len=0,
            max_str_len=MAX_NAME,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise Rejected(Reason.BAD_BODY, f"the table is not msgpack: {error}") from None
    if not isinstance(table, list):
        raise Rejected(Reason.BAD_BODY, "the table is not a list")
    return 4 + length, table


def _row(row: object) -> tuple[str, np.dtype[np.generic], tuple[int, ...]]:
    match row:
        case [str(name), str(dtype), [*dims]] if name and dtype in DTYPES and len(dims) <= MAX_DIMS:
            shape = tuple(n for n in dims if type(n) is int and 0 <= n <= MAX_NUMBERS)
            if len(shape) == len(dims) and math.prod(n or 1 for n in shape) <= MAX_NUMBERS:
                return name, DTYPES[dtype], shape
    # The message does not show the row, because the row may be nested too deeply for Python to print.
    raise Rejected(Reason.BAD_BODY, "a row of the table does not describe an array")
