"""Decide who is responsible for an error that occurs while a peer's message is handled.

An error of the disk, the index, memory or the broker affects all peers: it is ours, and is raised. Any other
error is caused by the message of one peer, whatever code raised it, and must not end the work with all other
peers. An error of a plug-in's own line belongs to the author, and the author is told of the line.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from protofleet.methods.plugins.authors import AuthorError, ends_with_author, words_of
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.address import BrokerError


class OurFault(RuntimeError):  # noqa: N818 - it reads as what it is: `except OurFault`
    """The error for a fault that belongs to no peer, for example in a save; it is raised from that fault."""


# The words that torch uses.
NO_MEMORY: Final = ("can't allocate memory", "out of memory", "not enough memory")
OURS: Final = (OSError, sqlite3.Error, MemoryError, DamagedError, NewerFormatError, BrokerError, OurFault)


def is_ours(error: BaseException) -> bool:
    """Return whether an error is ours, also if it occurred at work with tensors."""
    return isinstance(error, OURS) or is_want_of_memory(error)


def is_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return any(text in str(error).lower() for text in NO_MEMORY)
    return isinstance(error, MemoryError)


def as_authors(error: BaseException) -> AuthorError | None:
    """Return the error to report in place of an error in a plug-in's own code, or None for other errors.

    The plug-in's error may be a SystemExit. Errors of protofleet's own kinds have code that handles them, and
    so have errors for a lack of memory or disk space. A missing file may be ours, or one that the author's
    line opens.
    """
    if type(error).__module__.startswith("protofleet."):
        return None
    if is_ours(error) and (_is_of_the_machine(error) or not ends_with_author(error.__traceback__)):
        return None
    words = words_of(error)
    return AuthorError(words) if words else None


def _is_of_the_machine(error: BaseException) -> bool:
    return not isinstance(error, OSError | sqlite3.Error) or is_full(error)
