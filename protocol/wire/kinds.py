"""Define the kinds under which bytes are counted: one kind for each array that a method declares, and `control`.

The bytes outside of the declared arrays are counted as `control`. A kind is the first part of an array's name:
`weights.head.bias` is of the kind `weights`. Kinds are labels of metrics, so their number and their length are
bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CONTROL: Final = "control"
OTHER: Final = "other"  # kind of all arrays if the method declares no kinds
MOST_KINDS: Final = 16
MOST_LETTERS: Final = 20
NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{MOST_LETTERS - 1}}}")
# Arrays that the framework adds to the method's arrays. The bytes of these arrays are counted as CONTROL.
FRAMEWORK: Final = frozenset({"confusion", "manifest"})


def kind_in(name: str) -> str:
    """Return the kind that an array's name states: the part before the first dot."""
    return name.partition(".")[0]


@dataclass(frozen=True)
class Kinds:
    """The kinds that a method declares. The bytes of arrays of these kinds are counted as payload."""

    declared: frozenset[str]
    rest: str = CONTROL  # kind of an array that is not declared

    def of(self, name: str) -> str:
        """Return the kind of an array."""
        first = kind_in(name)
        if first in self.declared:
            return first
        return CONTROL if first in FRAMEWORK else self.rest

    def undeclared(self, names: Iterable[str]) -> list[str]:
        """Return the undeclared kinds of these names; return an empty list if the method declares no kinds."""
        firsts = {kind_in(name) for name in names} if self.rest == CONTROL else set()
        return sorted(firsts - self.declared)


UNDECLARED: Final = Kinds(frozenset(), OTHER)


def declared_kinds(names: Iterable[str]) -> Kinds:
    """Return the Kinds for declared names; raise ValueError if a name cannot be a kind."""
    found = list(names)
    for name in found:
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ValueError(
                f"{name!r} is no name of a kind: it must have 1 to {MOST_LETTERS} of the letters a to z, digits and "
                "_, and begin with a letter; a kind is the part of an array's name before its first dot"
            )
        if name == CONTROL or name in FRAMEWORK:
            raise ValueError(f"{name!r} is a name that the framework uses; give the array another name")
    if len(set(found)) > MOST_KINDS:
        raise ValueError(
            f"{len(set(found))} kinds of arrays, but the limit is {MOST_KINDS}, because each kind is a label of "
            "metrics; give arrays of one kind the same first name, as in weights.a and weights.b"
        )
    return Kinds(frozenset(found))
