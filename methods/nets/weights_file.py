"""Weights in a file of the safetensors format: a length, a table in JSON, the numbers. Nothing in it can run.

A network takes from it what has its names. Its backbone must be there whole; projector and head may be missing, as
whoever trained the file had other classes.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from protofleet.methods.nets.base import Net

LENGTH: Final = struct.Struct("<Q")
LARGEST_TABLE: Final = 100_000_000  # the format's own limit
DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
LISTED: Final = 3  # names in a message


class WeightsFileError(ValueError):
    """One line: what is wrong with the file."""


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    return decoded_weights(path.read_bytes())


def decoded_weights(content: bytes) -> dict[str, Tensor]:
    data = bytearray(content)
    table = _table(data)
    start = LENGTH.size + LENGTH.unpack_from(data)[0]
    return {name: _tensor(name, row, data, start) for name, row in table.items()}


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    path.write_bytes(encoded_weights(weights))


def encoded_weights(weights: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    return b"".join(pieces_of_weights(weights, about))


def pieces_of_weights(
    weights: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """The file tensor by tensor: all of it would be the weights in memory once more. `about` is the format's own
    metadata."""
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
    """The metadata of a file, of which no weights are read."""
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        length = min(LARGEST_TABLE, LENGTH.unpack(start)[0]) if len(start) == LENGTH.size else 0
        try:
            table = json.loads(file.read(length))
            return {str(key): str(value) for key, value in table.get("__metadata__", {}).items()}
        except (ValueError, RecursionError, AttributeError):
            raise WeightsFileError("its table is not JSON: no safetensors file") from None


def _table(data: bytearray) -> dict[str, Any]:
    if len(data) < LENGTH.size:
        raise WeightsFileError(f"it has {len(data)} bytes, which is no safetensors file")
    length = LENGTH.unpack_from(data)[0]
    if length > min(LARGEST_TABLE, len(data) - LENGTH.size):
        raise WeightsFileError(f"its table would have {length:,} bytes of {len(data):,}: no safetensors file")
    try:
        table = json.loads(data[LENGTH.size : LENGTH.size + length])
    except (ValueError, RecursionError):
        raise WeightsFileError("its table is not JSON: no safetensors file") from None
    if not isinstance(table, dict):
        raise WeightsFileError("its table is no object: no safetensors file")
    return {name: row for name, row in table.items() if name != "__metadata__"}


def _tensor(name: str, row: Any, data: bytearray, start: int) -> Tensor:
    try:
        dtype, shape, (first, last) = DTYPES[row["dtype"]], row["shape"], row["data_offsets"]
        whole = all(type(number) is int for number in (first, last, *shape))
        size = math.prod(shape) * dtype.itemsize
        inside = 0 <= first <= last <= len(data) - start
        fits = whole and inside and min([0, *shape]) == 0 and last - first == size
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise WeightsFileError(
            f"of {name[:64]!r} the table says {str(row)[:128]}, which does not fit the file"
        )
    # A copy: it may begin anywhere, and numbers of eight bytes want to lie on eight.
    piece = data[start + first : start + last]
    return torch.frombuffer(piece, dtype=dtype).reshape(shape) if piece else torch.empty(shape, dtype=dtype)


def load_from(model: Net, weights: Mapping[str, Tensor]) -> None:
    """WeightsFileError, and nothing is loaded, where it does not fit."""
    own = model.state_dict()
    if strange := sorted(weights.keys() - own.keys()):
        raise WeightsFileError(f"it has {some(strange)}, and the network has {some(sorted(own))}")
    missing = sorted(name for name in own.keys() - weights.keys() if name.startswith("features."))
    if missing:
        raise WeightsFileError(f"it lacks {some(missing)} of the network's backbone")
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise WeightsFileError(
                f"{name} is {tuple(value.shape)}, and the network's {tuple(own[name].shape)}; leave it out of the "
                "file if it is of a head or a projector, and of other classes"
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise WeightsFileError(f"{name} is not finite")
    with torch.no_grad():
        for name, value in weights.items():
            own[name].copy_(value)


def some(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(name[:64] for name in names[:LISTED]) + (f" and {more} more" if more > 0 else "")
