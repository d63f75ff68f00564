"""Compare lists of class names.

A label is an index into a list of class names. If two lists differ, a label can mean two different classes.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, TypeAlias

import msgpack

from protofleet.protocol.wire.tables import MAX_LETTERS, MAX_NAMES

SHOWN: Final = 8  # largest number of names that a log line shows
SHOWN_LETTERS: Final = 12  # largest number of letters of each shown name; a refusal has to fit into 512 bytes

Names: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The hash of a list of names, and the list itself if it has been received."""

    digest: bytes
    names: Names = ()


def digest_of(names: Sequence[str]) -> bytes:
    """Return the SHA-256 of the names, packed as a msgpack array."""
    return hashlib.sha256(packed(names)).digest()


def packed(names: Sequence[str]) -> bytes:
    found: bytes = msgpack.packb(list(names), use_bin_type=True)
    return found


def normalized(names: Sequence[str]) -> Names:
    """Return the names in Unicode's form C.

    File systems differ: some store é as one character, others as two.
    """
    return tuple(unicodedata.normalize("NFC", name) for name in names)


def problem_with(names: Sequence[str]) -> str:
    """Return the reason why a list of names cannot be sent, or ""."""
    if len(names) > MAX_NAMES:
        return f"there are {len(names)} class names, but at most {MAX_NAMES} can be sent"
    for name in names:
        if not name or len(name) > MAX_LETTERS or not name.isprintable():
            return f"{name[:80]!r} is no name of a class: it must have 1 to {MAX_LETTERS} printable letters"
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        return f"{twice!r} is the name of two classes"
    return ""


def difference(here: str, mine: Sequence[str], there: str, theirs: Sequence[str]) -> str:
    """Return a message with the first difference and both lists.

    Return "" if the lists are equal, or if one list is empty.
    """
    if not mine or not theirs or tuple(mine) == tuple(theirs):
        return ""
    pairs = enumerate(zip_longest(mine, theirs))
    place, (one, other) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    return (
        f"class {place} is {_quoted(one)} in {here} and {_quoted(other)} in {there}; "
        f"{here}: {listed(mine)}; {there}: {listed(theirs)}"
    )


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} ... ({len(names)})"


def _quoted(name: str | None) -> str:
    return "none" if name is None else repr(name)


def _short(name: str) -> str:
    return name if len(name) <= SHOWN_LETTERS else f"{name[: SHOWN_LETTERS - 3]}..."
