"""Sizes in bytes, as people write them: `200 MB`, or a whole number of bytes."""

from __future__ import annotations

import re
from typing import Annotated, Final

from protofleet.protocol.settings.bounds import Within

SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(|k|M|G|T)B")
LARGEST_SIZE: Final = 10**15  # Bytes.
FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
FORM: Final = (
    "a number and a unit, such as 1MB or '200 MB', from 1B to 1000TB; the units are B, kB, MB, GB and TB"
)


def bytes_in(text: str) -> float | None:
    """Return a size such as `200 MB` in bytes, or None if the text has another form or the size is out of range."""
    found = SIZE.fullmatch(text)
    size = float(found[1]) * FACTORS[found[2]] if found else 0.0
    return size if 1 <= size <= LARGEST_SIZE else None


def likely_size(value: object) -> str:
    """Suggest the size that a person has meant by a wrong value, as words for an error; "" if it is not clear."""
    if isinstance(value, float) and value.is_integer() and 1 <= value <= LARGEST_SIZE:
        return f"; a number with a point or an exponent, such as 1e6, is no whole number: write {int(value)}"
    if not isinstance(value, str):
        return ""
    right = {f"{unit}b".lower(): f"{unit}B" for unit in FACTORS}
    number = value.rstrip("bBkKmMgGtT")
    unit = right.get(value[len(number) :].lower())
    meant = f"{number}{unit}"
    return f"; did you mean {meant!r}?" if unit and meant != value and bytes_in(meant) is not None else ""


class ByteSize(int):
    """A number of bytes in a settings file. It is written as text with a unit, or as a whole number of bytes."""

    @classmethod
    def from_toml(cls, value: object) -> ByteSize | None:
        """Return the size that a TOML value describes, or None if the value describes no size."""
        if isinstance(value, str):
            size = bytes_in(value)
            return None if size is None else cls(size)
        return cls(value) if isinstance(value, int) and not isinstance(value, bool) else None


PositiveSize = Annotated[ByteSize, Within(1, LARGEST_SIZE)]
