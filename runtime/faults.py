"""Decide what is responsible for an error in the handling of a message: our side, the sender or a plug-in.

An error of the disk, the index, memory or the broker affects the work with all devices. This error counts as
an error of our side, and is raised. Any other error counts as an error of the sender, and must not end the
work with other devices.
If a line of a plug-in raised the error, the message names this line for the plug-in's author.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from protofleet.methods.plugins.authors import AuthorError, ends_with_author, words_of
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.address import BrokerError


class OurFault(RuntimeError):  # noqa: N818 - it reads as what it is: `except OurFault`
    """The error for a fault that no other party has caused, such as a failed save; `__cause__` is that fault."""


# Parts of torch's error messages about a lack of memory.
NO_MEMORY: Final = ("can't allocate memory", "out of memory", "not enough memory")
OURS: Final = (OSError, sqlite3.Error, MemoryError, DamagedError, NewerFormatError, BrokerError, OurFault)


def is_ours(error: BaseException) -> bool:
    """Return whether our side is responsible for an error; this includes torch's errors about a lack of memory."""
    return isinstance(error, OURS) or is_want_of_memory(error)


def is_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, RuntimeError):
        return any(text in str(error).lower() for text in NO_MEMORY)
    return isinstance(error, MemoryError)


def as_authors(error: BaseException) -> AuthorError | None:
    """Return an AuthorError for an error in a plug-in's own code, or None for any other error.

    The plug-in's error may be a SystemExit. The result is None for errors of protofleet's own classes and for
    a lack of memory or disk space, because other code handles them. A missing file is an error of the plug-in
    only if a line of the plug-in opens the file.
    """
    if type(error).__module__.startswith("protofleet."):
        return None
    if is_ours(error) and (_is_of_the_machine(error) or not ends_with_author(error.__traceback__)):
        return None
    words = words_of(error)
    return AuthorError(words) if words else None


def _is_of_the_machine(error: BaseException) -> bool:
    return not isinstance(error, OSError | sqlite3.Error) or is_full(error)
