"""Name the arrays of bytes that carry an attempt over the wire, and convert them.

Each array is a vector of uint8 named `control.<stage>.<part>`. So the arrays of both stages can be in one message.

| step | to all devices | to one device | from one device |
|---|---|---|---|
| keys | | | keys: 160 bytes |
| shares | roster: rows of 162; records | | shares: 82 for each other device |
| masked | first: a bitmap | shares: 82 for each other device of `first` | signature: 64; opened: a bitmap |
| agree | survivors: a bitmap | | signature: 64 |
| unmask | signatures: rows of 66 | | released: 33 for each device of `first` |

In the step `masked`, the device also sends the masked vector, in an array whose name begins with the kind of data.

Rows are in the order of the roster. Bit i of a bitmap, lowest bit of a byte first, is the device with place i.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.roster import NUMBER, Roster
from protofleet.protocol.secagg.signing import SIGNATURE
from protofleet.protocol.secagg.terms import Stage

ByteArrays: TypeAlias = Mapping[str, NDArray[np.uint8]]
Part: TypeAlias = Literal[
    "keys",
    "records",
    "roster",
    "shares",
    "first",
    "opened",
    "survivors",
    "signature",
    "signatures",
    "released",
    "vectors",
    "seeds",
    "lost",
]


class SumStep(str, Enum):
    """The steps of an attempt, in their order."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    AGREE = "agree"
    UNMASK = "unmask"


def array_name(stage: Stage, part: Part) -> str:
    return f"control.{stage}.{part}"


def as_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def bytes_in(arrays: ByteArrays, name: str) -> bytes:
    """Return the bytes of an array, or raise SecaggError if it is missing or not a vector of uint8."""
    found = arrays.get(name)
    if found is None or found.dtype != np.uint8 or found.ndim != 1:
        words = "missing" if found is None else f"{found.dtype} with the shape {found.shape}"
        raise SecaggError(SecaggFault.MALFORMED, f"{name} is {words}, it must be a vector of uint8")
    return found.tobytes()


def rows_in(data: bytes, count: int, size: int, what: str) -> list[bytes]:
    """Return `count` rows of `size` bytes, or raise SecaggError."""
    if len(data) != count * size:
        raise SecaggError(
            SecaggFault.MALFORMED, f"{what} has {len(data)} bytes, it must have {count} rows of {size}"
        )
    return [data[at : at + size] for at in range(0, len(data), size)]


def pack_names(roster: Roster, names: Collection[str]) -> bytes:
    """Return a bitmap of these devices."""
    bits = np.zeros(len(roster.names), np.uint8)
    bits[[roster.place(name) for name in names]] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def unpack_names(roster: Roster, data: bytes) -> tuple[str, ...]:
    """Return the devices of a bitmap in the order of the roster, or raise SecaggError."""
    size = len(roster.names)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if len(data) != -(-size // 8) or bits[size:].any():
        raise SecaggError(SecaggFault.MALFORMED, f"{len(data)} bytes are no bitmap of {size} devices")
    return tuple(roster.names[place] for place in np.flatnonzero(bits))


def pack_signatures(roster: Roster, signatures: Mapping[str, bytes]) -> bytes:
    """Return a row for each signature: the place of the device, and the signature."""
    return b"".join(
        roster.place(name).to_bytes(NUMBER, "little") + signatures[name] for name in sorted(signatures)
    )


def unpack_signatures(roster: Roster, data: bytes) -> dict[str, bytes]:
    """Return the signatures by name, or raise SecaggError; the signatures are not verified."""
    size = NUMBER + SIGNATURE
    if len(data) % size or len(data) > size * len(roster.names):
        raise SecaggError(
            SecaggFault.MALFORMED,
            f"{len(data)} bytes of signatures; there may be one row of {size} bytes for each device of the roster",
        )
    found: dict[str, bytes] = {}
    for row in rows_in(data, len(data) // size, size, "signatures"):
        place = int.from_bytes(row[:NUMBER], "little")
        if place >= len(roster.names) or roster.names[place] in found:
            raise SecaggError(SecaggFault.MALFORMED, f"signatures of device {place}, unknown or twice")
        found[roster.names[place]] = row[NUMBER:]
    return found


def in_order(roster: Roster, names: Collection[str]) -> Sequence[str]:
    """Return names in the order of the roster."""
    return sorted(names, key=roster.place)
