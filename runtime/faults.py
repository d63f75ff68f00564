"""Whose an error is that comes up while what a peer has said is handled.

What the disk, the index, memory or the broker says holds for everybody: it is ours, and raises. Anything else came up
with one peer's words, whoever wrote the line that raised, and must not end the work with all the others.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.address import BrokerError


class OurFault(RuntimeError):  # noqa: N818 - it reads as what it is: `except OurFault`
    """An error in what belongs to no peer, as a save; raised from that error."""


NO_MEMORY: Final = ("can't allocate memory", "out of memory", "not enough memory")  # as torch says it
OURS: Final = (OSError, sqlite3.Error, MemoryError, DamagedError, NewerFormatError, BrokerError, OurFault)


def is_ours(error: BaseException) -> bool:
    """Also of an error that came up at work with tensors."""
    if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in NO_MEMORY):
        return True
    return isinstance(error, OURS)
