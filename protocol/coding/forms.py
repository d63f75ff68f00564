"""Define the forms that an array can have in a bundle, and encode and decode each form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from protofleet.protocol.coding import floats, leb, rows, ternary
from protofleet.protocol.coding.bits import Whole
from protofleet.protocol.coding.floats import Floats
from protofleet.protocol.wire.arrays import DTYPES
from protofleet.protocol.wire.messages import Array
from protofleet.protocol.wire.reasons import Reason, Rejected

# A longer array is cut into records, so a reader of a few numbers does not need memory for all of them.
MOST_IN_RECORD: Final = 1 << 20


class Form(IntEnum):
    SAME = 0  # no content: the array equals the array of the reference
    EXACT = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT4 = 5
    UINT8 = 6
    UINT4 = 7
    RICE = 8
    TERNARY = 9
    INTS = 10
    # The first byte of every number, then the second byte of every number, and so on. zlib compresses this order
    # better than the order of EXACT.
    PLANES = 11


LOSSLESS: Final = frozenset({Form.SAME, Form.EXACT, Form.INTS, Form.PLANES})
# Forms whose numbers may be differences. A reader adds the differences to the reference.
DIFFERENCES: Final = frozenset(Form) - {Form.SAME, Form.EXACT, Form.PLANES}
# Forms in which a large array may take only a few bytes. The reader takes the shape from the reference, so a sender
# cannot make the reader create an array of any size.
NEED_REFERENCE: Final = frozenset({Form.SAME, Form.TERNARY})
MAY_HAVE_REFERENCE: Final = DIFFERENCES | NEED_REFERENCE
FOR_FLOAT32: Final = frozenset(Form) - LOSSLESS
GRIDS: Final = {Form.INT8: rows.INT8, Form.INT4: rows.INT4, Form.UINT8: rows.UINT8, Form.UINT4: rows.UINT4}


@dataclass(frozen=True, slots=True)
class Piece:
    """The part [start, stop) of a flattened array that one record contains, and the shape in which it is coded."""

    start: int
    stop: int
    shape: tuple[int, ...]


def pieces(shape: tuple[int, ...]) -> Iterator[Piece]:
    """Yield the records of an array: whole rows if a row fits into a record, otherwise parts of rows."""
    count = math.prod(shape)
    if count <= MOST_IN_RECORD:
        yield Piece(0, count, shape)
        return
    number, length = rows.rows_of(shape)
    if length <= MOST_IN_RECORD:
        many = MOST_IN_RECORD // length
        for first in range(0, number, many):
            taken = min(many, number - first)
            yield Piece(first * length, (first + taken) * length, (taken, length))
        return
    for row in range(0, count, length):
        for start in range(row, row + length, MOST_IN_RECORD):
            stop = min(start + MOST_IN_RECORD, row + length)
            yield Piece(start, stop, (stop - start,))


def encode(form: Form, values: Array, chance: np.random.Generator | None = None) -> bytes:
    """Return the content of a record. With `chance`, the rounding of rows is stochastic."""
    if form in GRIDS:
        return rows.encode_rows(_float32(values), GRIDS[form], chance)
    match form:
        case Form.SAME:
            return b""
        case Form.FLOAT16:
            return floats.float16_of(values).tobytes()
        case Form.BFLOAT16:
            return floats.bfloat16_of(values).tobytes()
        case Form.RICE:
            return rows.encode_rice_rows(_float32(values), chance)
        case Form.INTS:
            return leb.pack_ints(values)
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    if form is Form.PLANES:
        return np.ascontiguousarray(little.reshape(-1, 1).view(np.uint8).T).tobytes()
    assert form is Form.EXACT, "encode_ternary needs the kept positions"
    return little.tobytes()


def encode_ternary(values: Array, positions: Whole) -> bytes:
    return ternary.encode_ternary(_float32(values).reshape(-1), positions)


def _float32(values: Array) -> Floats:
    return np.asarray(values, np.float32)


def decode(form: Form, data: bytes | memoryview, shape: tuple[int, ...], dtype: str, most: int = 0) -> Array:
    """Return the numbers of a record, or raise Rejected.

    `most` is the largest number of kept numbers of a ternary record.
    """
    if form in GRIDS:
        return rows.decode_rows(data, shape, GRIDS[form])
    count = math.prod(shape)
    match form:
        case Form.RICE:
            return rows.decode_rice_rows(data, shape)
        case Form.TERNARY:
            return ternary.decode_ternary(data, count, most).reshape(shape)
        case Form.INTS:
            return leb.unpack_ints(data, count, DTYPES[dtype]).reshape(shape)
        case Form.FLOAT16:
            return _raw(data, count, np.dtype("<f2")).astype(np.float32).reshape(shape)
        case Form.BFLOAT16:
            return floats.from_bfloat16(np.asarray(_raw(data, count, np.dtype("<u2")), np.uint16)).reshape(
                shape
            )
    return _exact(form, data, count, DTYPES[dtype]).reshape(shape)


def _exact(form: Form, data: bytes | memoryview, count: int, dtype: np.dtype[np.generic]) -> Array:
    if form is Form.PLANES:
        planes = _raw(data, count * dtype.itemsize, np.dtype(np.uint8)).reshape(dtype.itemsize, count)
        data = planes.T.tobytes()
    if dtype != np.bool_:
        return _raw(data, count, dtype)
    found = _raw(data, count, np.dtype(np.uint8)).astype(np.uint8)
    if (found > 1).any():
        raise Rejected(Reason.BAD_BODY, "a bool is neither 0 nor 1")
    return found.astype(np.bool_)


def _raw(data: bytes | memoryview, count: int, dtype: np.dtype[np.generic]) -> Array:
    if len(data) != count * dtype.itemsize:
        raise Rejected(
            Reason.BAD_BODY,
            f"{len(data)} bytes is the wrong length for {count} numbers of {dtype.itemsize} bytes",
        )
    return np.frombuffer(data, dtype)
