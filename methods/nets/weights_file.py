"""Files of weights in the safetensors format: a length, a table in JSON, the numbers, and no code.

If a tensor of the file and a tensor of the network have the same name, the network loads the tensor of the file. The
file must have the whole backbone. Projector and head may be missing, because the file may be for other classes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from protofleet.methods.nets.base import Net

LENGTH: Final = struct.Struct("<Q")
LARGEST_TABLE: Final = 100_000_000  # The largest size of the table in bytes that the format allows.
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
LISTED: Final = 3  # The largest number of names in a message.
MOST_TENSORS: Final = 100_000
MOST_NAME: Final = 256  # The largest number of characters in a name.
MOST_AXES: Final = 8
DEEPEST: Final = 3  # The largest depth of brackets. A shape is in a row, and a row is in the table.
LARGEST: Final = 1 << 62  # The largest number in the table.
RULE: Final = "rule."  # Prefix of the names of the rule's tensors, in the files that an export writes.


class WeightsFileError(ValueError):
    """The error about a weights file, with a message of one line."""


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    return decoded_weights(path.read_bytes())


def decoded_weights(content: bytes) -> dict[str, Tensor]:
    """Copy the tensors out of a file, or raise WeightsFileError if it is not a valid safetensors file."""
    table = _table(content)
    start = LENGTH.size + LENGTH.unpack_from(content)[0]
    rows = [_row(name, row, len(content) - start) for name, row in table.items()]
    _demand_each_byte_once(rows, len(content) - start)
    # Each tensor is copied, because it may begin at any byte, and numbers of eight bytes need an aligned address.
    return {row.name: row.tensor(bytearray(content[start + row.first : start + row.last])) for row in rows}


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    path.write_bytes(encoded_weights(weights))


def encoded_weights(weights: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    return b"".join(pieces_of_weights(weights, about))


def pieces_of_weights(
    weights: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """Yield the file tensor by tensor, so that the weights are not in memory twice.

    `about` is the metadata of the format.
    """
    at = 0
    table: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    for name, value in sorted(weights.items()):
        place = [at, at := at + value.nbytes]
        table[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": place}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield LENGTH.pack(len(text)) + text
    for _, value in sorted(weights.items()):
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def said_about(path: Path) -> dict[str, str]:
    """Return the metadata of a file, without reading any weights."""
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        length = min(LARGEST_TABLE, LENGTH.unpack(start)[0]) if len(start) == LENGTH.size else 0
        try:
            table = json.loads(file.read(length))
            return {str(key): str(value) for key, value in table.get("__metadata__", {}).items()}
        except (ValueError, RecursionError, AttributeError):
            raise WeightsFileError("its table is not JSON, so this is not a safetensors file") from None


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table for one tensor, after the check that it fits the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int
    last: int

    def tensor(self, piece: bytearray) -> Tensor:
        if not piece:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(piece, dtype=self.dtype).reshape(self.shape)


def _table(data: bytes) -> dict[str, Any]:
    if len(data) < LENGTH.size:
        raise WeightsFileError(f"it has {len(data)} bytes, too few for a safetensors file")
    length = LENGTH.unpack_from(data)[0]
    if length > min(LARGEST_TABLE, len(data) - LENGTH.size):
        raise WeightsFileError(
            f"its table would have {length:,} bytes, but the file has {len(data):,}, so it is not a safetensors file"
        )
    text = data[LENGTH.size : LENGTH.size + length]
    _demand_flat(text)
    try:
        table = json.loads(text, object_pairs_hook=_each_name_once)
    except WeightsFileError:
        raise
    except (ValueError, RecursionError):
        raise WeightsFileError("its table is not JSON, so this is not a safetensors file") from None
    if not isinstance(table, dict):
        raise WeightsFileError("its table is not a JSON object, so this is not a safetensors file")
    return {name: row for name, row in table.items() if name != "__metadata__"}


def _demand_flat(text: bytes) -> None:
    """Refuse a table whose JSON text has too many brackets or commas, because the parser would make too many objects.

    Brackets and commas inside names are counted too.
    """
    rows = text.count(b"data_offsets")
    if rows > MOST_TENSORS:
        raise WeightsFileError(f"its table has {rows:,} tensors, but at most {MOST_TENSORS:,} are allowed")
    if re.search(rb"[\[{]\s*" * (DEEPEST + 1), text):
        raise WeightsFileError(
            f"the brackets of its table are nested more than {DEEPEST} deep, so this is not a safetensors file"
        )
    if text.count(b",") > 16 * (rows + MOST_NAME):
        raise WeightsFileError(
            "its table has more values than tensors need, so this is not a safetensors file"
        )


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, many in Counter(name for name, _ in pairs).items() if many > 1)
        raise WeightsFileError(f"its table has the tensor {twice[:64]!a} twice; write each tensor once")
    return found


def _row(name: str, row: Any, size: int) -> _Row:
    """Return a row of the table.

    Raise WeightsFileError if the row does not fit a file that has `size` bytes after its table.
    """
    if not 0 < len(name) <= MOST_NAME or not name.isprintable():
        raise WeightsFileError(
            f"a tensor is called {name[:64]!a}, but its name must have 1 to {MOST_NAME} printable characters"
        )
    try:
        dtype, shape, (first, last) = DTYPES[row["dtype"]], row["shape"], row["data_offsets"]
        whole = all(type(number) is int and 0 <= number <= LARGEST for number in (first, last, *shape))
        fits = type(shape) is list and len(shape) <= MOST_AXES and whole and first <= last <= size
        fits = fits and last - first == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise WeightsFileError(
            f"the entry of the tensor {name[:64]!r} is {ascii(row)[:128]}, which does not fit the file"
        )
    return _Row(name, dtype, tuple(shape), first, last)


def _demand_each_byte_once(rows: list[_Row], size: int) -> None:
    """Refuse tensors that share bytes, and bytes that belong to no tensor.

    Tensors that share bytes could need much more memory than the size of the file.
    """
    at, before = 0, "the table"
    for row in sorted(rows, key=lambda row: (row.first, row.last)):
        if row.first != at:
            fault = (
                f"shares bytes with {before[:64]}" if row.first < at else f"leaves a gap after {before[:64]}"
            )
            raise WeightsFileError(
                f"{row.name[:64]} begins at byte {row.first:,} and {fault}: it must begin at byte {at:,}; write the "
                "file again with the safetensors library"
            )
        at, before = row.last, row.name
    if at != size:
        raise WeightsFileError(
            f"its table describes {at:,} bytes of numbers, but the file has {size:,}; copy the file again"
        )


def as_first_weights(weights: Mapping[str, Tensor], model: Net) -> dict[str, Tensor]:
    """Return the tensors of an export under the names that a network uses.

    An export stores its head under the prefix RULE, and this function removes the prefix. All tensors of the features
    are returned. Other tensors, such as prototypes, are returned only if the network has tensors of these names.
    Tensors of a file that is not an export are returned unchanged.
    """
    if not any(name.startswith(RULE) for name in weights):
        return dict(weights)
    found = {name.removeprefix(RULE): value for name, value in weights.items()}
    own = model.state_dict()
    return {name: value for name, value in found.items() if name in own or name.startswith("features.")}


def load_from(model: Net, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a model; if they do not fit, raise WeightsFileError and load nothing."""
    own = model.state_dict()
    if strange := sorted(weights.keys() - own.keys()):
        raise WeightsFileError(f"it contains {some(strange)}, but the network has only {some(sorted(own))}")
    missing = sorted(name for name in own.keys() - weights.keys() if name.startswith("features."))
    if missing:
        raise WeightsFileError(f"it does not contain {some(missing)} of the network's backbone")
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise WeightsFileError(
                f"{name} has the shape {tuple(value.shape)}, but the network needs {tuple(own[name].shape)}; "
                "leave this tensor out of the file if it belongs to a head or projector for other classes"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise WeightsFileError(f"{name} is not finite")
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)


def some(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(name[:64] for name in names[:LISTED]) + (f" and {more} more" if more > 0 else "")
