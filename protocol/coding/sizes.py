"""Compute the largest and the expected sizes of coded arrays.

A receiver knows the largest sizes before it has received a byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

from protofleet.protocol.coding import forms, leb, rows
from protofleet.protocol.coding.coder import most_kept, planned_form
from protofleet.protocol.coding.forms import Form
from protofleet.protocol.coding.ternary import HEAD, width_for
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.wire.arrays import DTYPES

# Bytes for the form, the dtype, the number of dimensions and the size of the content. Each dimension adds five bytes.
RECORD_HEAD: Final = 8
BUNDLE_HEAD: Final = 16
TERNARY_PADDING: Final = 3  # largest number of padding bytes: each of the three streams may need one


class ExpectedArray(Protocol):
    """An array that an update or a broadcast may have."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """Return the largest possible shape, if a length is not fixed."""
        ...

    @property
    def in_broadcast(self) -> bool:
        """Return whether the broadcast has an array of this name, dtype and shape."""
        ...


def most_bytes_of_kind(arrays: Sequence[ExpectedArray], stage: CodecStage) -> int:
    """Return the largest size in bytes that a bundle can have if zlib does not compress it."""
    sparse = [one for one in arrays if _form_of(one, stage) is Form.TERNARY]
    dense = sum(_most_bytes(one, stage) for one in arrays if one not in sparse)
    heads = sum(_head_bytes(one) for one in arrays)
    return BUNDLE_HEAD + heads + dense + _most_ternary_bytes(sparse, stage)


def _form_of(one: ExpectedArray, stage: CodecStage) -> Form:
    return planned_form(one.name, one.dtype, one.shape, one.in_broadcast, stage)


def _head_bytes(one: ExpectedArray) -> int:
    records = sum(1 for _ in forms.pieces(one.shape))
    return len(one.name.encode()) + 2 + 5 * len(one.shape) + RECORD_HEAD * max(1, records)


def _most_bytes(one: ExpectedArray, stage: CodecStage) -> int:
    """Return the largest possible size in bytes of an array that is not ternary."""
    form, count = _form_of(one, stage), math.prod(one.shape)
    if form in forms.GRIDS:
        return rows.size_of_rows(one.shape, forms.GRIDS[form])
    match form:
        case Form.RICE:
            return rows.most_rice_bytes(one.shape)
        case Form.FLOAT16 | Form.BFLOAT16:
            return 2 * count
    return int(count * DTYPES[one.dtype].itemsize)


def _most_ternary_bytes(arrays: Sequence[ExpectedArray], stage: CodecStage) -> int:
    """Return the largest possible size in bytes of all ternary arrays together.

    With the width of `ternary.width_for`, each gap takes at most 5 + log2(n / k) bits if k of n numbers are kept,
    and each sign takes one bit more. The sum over all arrays is largest if all arrays keep the same share.
    """
    if not arrays:
        return 0
    records = sum(1 for one in arrays for _ in forms.pieces(one.shape))
    numbers = sum(math.prod(one.shape) for one in arrays)
    kept = most_kept(numbers, stage)
    bits = kept * (6 + math.log2(numbers / kept))
    return records * (HEAD.size + TERNARY_PADDING) + math.ceil(bits / 8)


def expected_bytes_of_kind(arrays: Sequence[ExpectedArray], stage: CodecStage) -> int | None:
    """Return the expected size in bytes of a bundle, if the numbers that `ternary` keeps lie at random.

    Return None if a bundle has rice rows or may be a zlib stream, because these sizes depend on the numbers. Whole
    numbers are counted with their size in memory.
    """
    sparse = [one for one in arrays if _form_of(one, stage) is Form.TERNARY]
    if stage.pack or any(_form_of(one, stage) is Form.RICE for one in arrays):
        return None
    sizes = [_most_bytes(one, stage) for one in arrays if one not in sparse]
    sizes += _expected_ternary_bytes(sparse, stage)
    heads = sum(1 + len(leb.pack_one(size)) for size in sizes)
    if not all(one.in_broadcast for one in arrays):
        heads += sum(len(one.name.encode()) + 3 + len(one.shape) for one in arrays)
    return 2 + heads + sum(sizes)


def _expected_ternary_bytes(arrays: Sequence[ExpectedArray], stage: CodecStage) -> list[int]:
    """Return the expected size of each record, if all arrays keep the same share p of their numbers.

    With remainders of b bits, a gap takes b + 1 / (1 - (1 - p) ** (2 ** b)) bits (Sattler et al., eq. 17).
    """
    pieces = [piece for one in arrays for piece in forms.pieces(one.shape)]
    numbers = sum(math.prod(one.shape) for one in arrays)
    if not numbers:
        return []
    kept = most_kept(numbers, stage)
    share, width = kept / numbers, width_for(kept, numbers)
    bits = 1 + width + 1 / (1 - (1 - share) ** (1 << width))
    counts = [share * (piece.stop - piece.start) for piece in pieces]
    return [round(HEAD.size + TERNARY_PADDING / 2 + count * bits / 8) for count in counts]
