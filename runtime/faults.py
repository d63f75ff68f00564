"""Whose an error is that comes up while what a peer has said is handled.

What the disk, the index, memory or the broker says holds for everybody: it is ours, and raises. Anything else came up
with one peer's words, whoever wrote the line that raised, and must not end the work with all the others.
What a plug-in's own line raises is its author's, who is told of the line.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from protofleet.methods.plugins.authors import AuthorError, ends_with_author, words_of
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.address import BrokerError


class OurFault(RuntimeError):  # noqa: N818 - it reads as what it is: `except OurFault`
    """An error in what belongs to no peer, as a save; raised from that error."""


NO_MEMORY: Final = ("can't allocate memory", "out of memory", "not enough memory")  # as torch says it
OURS: Final = (OSError, sqlite3.Error, MemoryError, DamagedError, NewerFormatError, BrokerError, OurFault)


def is_ours(error: BaseException) -> bool:
    """Also of an error that came up at work with tensors."""
    return isinstance(error, OURS) or is_want_of_memory(error)


def is_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return any(text in str(error).lower() for text in NO_MEMORY)
    return isinstance(error, MemoryError)


def as_authors(error: BaseException) -> AuthorError | None:
    """What is said in place of an error that came up in a plug-in's own code, a SystemExit too; None: in none.

    Errors of protofleet's own kinds have somebody who handles them, as want of memory and of disk have. A file that
    is missing may be ours or one that the author's line opens.
    """
    if type(error).__module__.startswith("protofleet."):
        return None
    if is_ours(error) and (_is_of_the_machine(error) or not ends_with_author(error.__traceback__)):
        return None
    words = words_of(error)
    return AuthorError(words) if words else None


def _is_of_the_machine(error: BaseException) -> bool:
    return not isinstance(error, OSError | sqlite3.Error) or is_full(error)
