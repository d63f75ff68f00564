"""Write and read bundles. A bundle contains all coded arrays of one kind, and is one array of bytes in a body.

    bundle := u8 1 | u8 flags | [u32 length, if flags & 2: the rest is one zlib stream of this length]
              | [names, if flags & 1] | record ...
    names  := leb count | (leb length, UTF-8) ...          ascending
    record := u8 form, + 128 with a reference | [u8 dtype, u8 dimensions, leb length ...: only without a reference]
              | leb size | content

If a bundle has no `names`, its arrays have the names that both sides know, in ascending order. An array of more
than 2**20 numbers has several records; the records after the first have no dtype and no shape. All sizes are
checked before memory for the numbers is allocated.
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from protofleet.protocol.coding import forms, ternary
from protofleet.protocol.coding.forms import Form, Piece
from protofleet.protocol.coding.leb import pack_one
from protofleet.protocol.wire.arrays import (
    DTYPES,
    MAX_ARRAYS,
    MAX_DIMS,
    MAX_NAME,
    MAX_NUMBERS,
    NAMES,
    SlicedArrays,
)
from protofleet.protocol.wire.messages import Array
from protofleet.protocol.wire.reasons import Reason, Rejected

VERSION: Final = 1
NAMED, PACKED = 1, 2
REFERENCE: Final = 128
DTYPE_NAMES: Final = tuple(DTYPES)  # On the wire, a dtype is its index in this tuple.
ZLIB_LEVEL: Final = 6
# In larger bundles, zlib looks only for runs of one byte. The search for other repeated bytes takes most of the time,
# and the numbers of a model hardly repeat: without the search, the planes of float32 numbers are 2 % smaller.
SEARCHED: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Coded:
    """A coded array: its form, and the content of each of its records."""

    form: Form
    contents: tuple[bytes, ...]
    # Empty if the array has a reference, because the reader knows the dtype and shape of the reference.
    dtype: str = ""
    shape: tuple[int, ...] = ()


def write_bundle(arrays: Mapping[str, Coded], known: Sequence[str], pack: bool = False) -> bytes:
    """Return a bundle of these arrays.

    If the names of the arrays are exactly the names in `known`, the bundle does not contain the names, because the
    reader knows them.

    With `pack`, the part after the header is compressed by zlib if this makes it smaller.
    """
    names = sorted(arrays)
    flags = 0 if names == sorted(known) else NAMED
    rest = b"".join(
        [*(_names(names) if flags else ()), *(part for n in names for part in _records(arrays[n]))]
    )
    packed = _compressed(rest) if pack else rest
    if pack and len(packed) + 4 < len(rest):
        return bytes((VERSION, flags | PACKED)) + struct.pack("<I", len(rest)) + packed
    return bytes((VERSION, flags)) + rest


def _compressed(data: bytes) -> bytes:
    """Compress with zlib; return the smaller of the results with and without a search for repeated bytes."""
    coder = zlib.compressobj(ZLIB_LEVEL, strategy=zlib.Z_RLE)
    coded = coder.compress(data) + coder.flush()
    return min(coded, zlib.compress(data, ZLIB_LEVEL), key=len) if len(data) <= SEARCHED else coded


def _names(names: Sequence[str]) -> Iterator[bytes]:
    yield pack_one(len(names))
    for name in names:
        yield pack_one(len(name.encode())) + name.encode()


def _records(array: Coded) -> Iterator[bytes]:
    number = array.form if array.dtype else array.form | REFERENCE
    for place, content in enumerate(array.contents):
        yield bytes((number,))
        if place == 0 and array.dtype:
            yield bytes((DTYPE_NAMES.index(array.dtype), len(array.shape)))
            yield b"".join(pack_one(length) for length in array.shape)
        yield pack_one(len(content)) + content


def dtype_of(array: Array) -> str:
    return NAMES[array.dtype]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which a bundle is read; both sides derive them from the plan."""

    allowed: frozenset[Form]
    most_raw: int  # largest length in bytes of the bundle without zlib
    most_kept: int = 0  # largest number of kept numbers of all ternary arrays together
    packed: bool = True  # whether a bundle may be a zlib stream


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    form: Form
    piece: Piece
    content: memoryview


@dataclass(slots=True)
class ArrayEntry:
    dtype: str
    shape: tuple[int, ...]
    added: bool  # whether the records contain a difference, which is added to the reference
    records: list[ArrayRecord] = field(default_factory=list)


class Bundle(Mapping[str, Array]):
    """The arrays of a bundle. An array is decoded each time that it is read, and is not kept in memory."""

    def __init__(
        self, data: bytes, known: Sequence[str], rules: Rules, reference: SlicedArrays | None = None
    ) -> None:
        """Check the bundle, and raise Rejected if it has a fault. No number is decoded here.

        If the bundle does not contain the names of its arrays, the arrays have the names in `known`. A decoded
        difference is added to the array of the same name in `reference`.
        """
        self._rules, self._reference, self._kept = rules, reference, 0
        cursor = Cursor(*_opened(data, rules))
        names = cursor.names() if cursor.named else sorted(known)
        self._entries = {name: self._entry(cursor, name) for name in names}
        cursor.end()

    def _entry(self, cursor: Cursor, name: str) -> ArrayEntry:
        form, against = self._form(cursor, name)
        if against:
            assert self._reference is not None
            entry = ArrayEntry(*self._reference.dtype_and_shape(name), form is not Form.SAME)
        else:
            entry = ArrayEntry(*cursor.dtype_and_shape(name), False)
        if form in forms.FOR_FLOAT32 and entry.dtype != "float32":
            raise Rejected(
                Reason.WRONG_DTYPE,
                f"{name} is {entry.dtype}, but the form {form.name.lower()} is not for this dtype",
            )
        if entry.added and entry.dtype == "bool":
            raise Rejected(Reason.WRONG_DTYPE, f"{name} is a difference, but has the dtype bool")
        if form is Form.INTS and entry.dtype.startswith("float"):
            raise Rejected(Reason.WRONG_DTYPE, f"{name} is {entry.dtype}, but its form is for whole numbers")
        for place, piece in enumerate(forms.pieces(entry.shape)):
            if place:
                again, with_reference = self._form(cursor, name)
                if with_reference != against:
                    raise Rejected(
                        Reason.BAD_BODY, f"{name} has records with a reference and records without it"
                    )
                form = again
            entry.records.append(self._record(form, piece, cursor.blob()))
        return entry

    def _form(self, cursor: Cursor, name: str) -> tuple[Form, bool]:
        number = cursor.byte()
        against, number = bool(number & REFERENCE), number & ~REFERENCE
        if number not in self._rules.allowed:
            raise Rejected(Reason.BAD_BODY, f"{name} has the form {number}, which the plan does not allow")
        form = Form(number)
        if against and (self._reference is None or name not in self._reference):
            raise Rejected(
                Reason.BAD_BODY, f"{name} is coded with a reference, but the reference has no such array"
            )
        if against and form not in forms.MAY_HAVE_REFERENCE:
            raise Rejected(
                Reason.BAD_BODY, f"{name} has a reference, but the form {form.name.lower()} takes none"
            )
        if not against and form in forms.NEED_REFERENCE:
            raise Rejected(
                Reason.BAD_BODY, f"{name} has the form {form.name.lower()}, which needs a reference"
            )
        return form, against

    def _record(self, form: Form, piece: Piece, content: memoryview) -> ArrayRecord:
        if form is Form.SAME and len(content):
            raise Rejected(
                Reason.BAD_BODY,
                f"{len(content)} bytes are the content of an unchanged array, which has no content",
            )
        if form is Form.TERNARY:
            self._kept += ternary.kept_in(content)
            if self._kept > self._rules.most_kept:
                raise Rejected(
                    Reason.BAD_BODY,
                    f"{self._kept} numbers are kept, but the limit is {self._rules.most_kept}",
                )
        return ArrayRecord(form, piece, content)

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        entry = self._entries[name]
        return entry.dtype, entry.shape

    def form(self, name: str) -> Form:
        """Return the form of the first record of an array."""
        return self._entries[name].records[0].form

    def __getitem__(self, name: str) -> Array:
        shape = self._entries[name].shape
        return self.flat(name, 0, math.prod(shape)).reshape(shape)

    def flat(self, name: str, start: int, stop: int) -> Array:
        """Return the numbers [start, stop) of the flattened array; decode only the records with these numbers."""
        entry = self._entries[name]
        found = np.empty(stop - start, DTYPES[entry.dtype])
        for record in entry.records:
            low, high = max(start, record.piece.start), min(stop, record.piece.stop)
            if low < high:
                values = self._numbers(name, entry, record)
                begin = record.piece.start
                found[low - start : high - start] = values[low - begin : high - begin]
        return found

    def _numbers(self, name: str, entry: ArrayEntry, record: ArrayRecord) -> Array:
        piece = record.piece
        if record.form is Form.SAME:
            return self._referred(name, piece)
        most = self._rules.most_kept
        values = forms.decode(record.form, record.content, piece.shape, entry.dtype, most).reshape(-1)
        if not entry.added:
            return values
        # A number is rounded once when it is decoded and once when it is added, so all machines agree. Whole
        # numbers wrap around.
        with np.errstate(over="ignore", invalid="ignore"):  # a later check refuses what is not finite
            total: Array = np.add(self._referred(name, piece), values)
        return total

    def _referred(self, name: str, piece: Piece) -> Array:
        assert self._reference is not None
        return self._reference.flat(name, piece.start, piece.stop)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping.__contains__ would decode the array.

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _opened(data: bytes, rules: Rules) -> tuple[memoryview, bool]:
    """Return the uncompressed part after the header, and whether this part begins with names."""
    if len(data) < 2 or data[0] != VERSION or data[1] & ~(NAMED | PACKED):
        raise Rejected(Reason.BAD_BODY, f"a bundle begins with {data[:2].hex()}, which is not a valid header")
    if not data[1] & PACKED:
        if len(data) - 2 > rules.most_raw:
            raise Rejected(
                Reason.TOO_LARGE, f"a bundle has {len(data)} bytes, but the limit is {rules.most_raw + 2}"
            )
        return memoryview(data)[2:], bool(data[1] & NAMED)
    if not rules.packed or len(data) < 6:
        raise Rejected(Reason.BAD_BODY, "a zlib stream is too short, or the plan allows no zlib stream")
    (length,) = struct.unpack_from("<I", data, 2)
    return memoryview(_inflated(data[6:], length, rules.most_raw)), bool(data[1] & NAMED)


def _inflated(data: bytes, length: int, most: int) -> bytes:
    if length > most:
        raise Rejected(Reason.TOO_LARGE, f"a zlib stream contains {length} bytes, but the limit is {most}")
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, length + 1)
    except zlib.error as error:
        raise Rejected(Reason.BAD_BODY, f"a zlib stream cannot be read: {error}") from None
    if len(found) != length or not stream.eof or stream.unused_data or stream.unconsumed_tail:
        raise Rejected(Reason.BAD_BODY, f"a zlib stream does not contain exactly {length} bytes")
    return found


class Cursor:
    """A reader of a bundle that checks each length before it reads the bytes."""

    def __init__(self, data: memoryview, named: bool) -> None:
        self._data, self._at, self.named = data, 0, named

    def byte(self) -> int:
        if self._at == len(self._data):
            self._take(1)
        self._at += 1
        return self._data[self._at - 1]

    def number(self) -> int:
        value = 0
        for place in range(5):
            byte = self.byte()
            value |= (byte & 127) << 7 * place
            if byte < 128:
                if place and not byte:
                    raise Rejected(Reason.BAD_BODY, "a length is written in more bytes than it needs")
                return value
        raise Rejected(Reason.BAD_BODY, "a length has more than 35 bits")

    def blob(self) -> memoryview:
        return self._take(self.number())

    def names(self) -> list[str]:
        count = self.number()
        if count > MAX_ARRAYS:
            raise Rejected(Reason.BAD_BODY, f"a bundle has {count} arrays, but the limit is {MAX_ARRAYS}")
        try:
            names = [bytes(self.blob()).decode() for _ in range(count)]
        except UnicodeDecodeError:
            raise Rejected(Reason.BAD_BODY, "the name of an array is not UTF-8") from None
        if any(not 0 < len(name.encode()) <= MAX_NAME for name in names):
            raise Rejected(Reason.BAD_BODY, f"the name of an array does not have 1 to {MAX_NAME} bytes")
        if any(later <= name for name, later in itertools.pairwise(names)):
            raise Rejected(Reason.BAD_BODY, "the names of the arrays are not in ascending order")
        return names

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        dtype, dimensions = self.byte(), self.byte()
        if dtype >= len(DTYPE_NAMES) or dimensions > MAX_DIMS:
            raise Rejected(
                Reason.BAD_BODY,
                f"{name} has the dtype {dtype} and {dimensions} dimensions, which is not allowed",
            )
        shape = tuple(self.number() for _ in range(dimensions))
        if math.prod(length or 1 for length in shape) > MAX_NUMBERS:
            raise Rejected(Reason.BAD_BODY, f"{name} has more than {MAX_NUMBERS} numbers")
        return DTYPE_NAMES[dtype], shape

    def end(self) -> None:
        if self._at != len(self._data):
            raise Rejected(Reason.BAD_BODY, f"{len(self._data) - self._at} bytes follow the last record")

    def _take(self, size: int) -> memoryview:
        if self._at + size > len(self._data):
            raise Rejected(
                Reason.BAD_BODY,
                f"the bundle ends at byte {len(self._data)}, but needs {self._at + size} bytes",
            )
        self._at += size
        return self._data[self._at - size : self._at]
