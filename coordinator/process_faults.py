"""Decide whether an error concerns one run only, or the whole process."""

from __future__ import annotations

from typing import Final

from protofleet.coordinator.spool.index import FencedError
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.storage.disk import is_full, is_locked
from protofleet.protocol.transport.address import BrokerError
from protofleet.runtime.faults import OurFault, as_authors
from protofleet.runtime.metrics_page import MetricsError

# Errors of the process or of its machine. They end the process, and its runs go on after the next start.
# A missing file is not one of them, because the folder of one run was moved or deleted.
OF_THE_PROCESS: Final = (BrokerError, FencedError, MetricsError, KeyFileError, StatementError, OSError)


def is_of_the_process(error: BaseException) -> bool:
    """Return whether an error is not about one run, so that the process has to end."""
    if isinstance(error, OurFault) and error.__cause__ is not None:
        return is_of_the_process(error.__cause__)
    if isinstance(error, FileNotFoundError):
        return False
    return isinstance(error, OF_THE_PROCESS) or is_full(error) or is_locked(error)


def words_of(error: Exception) -> str:
    """Return the reason of a failure in one line."""
    found = as_authors(error) or error
    cause = f": {found.__cause__}" if isinstance(found, OurFault) and found.__cause__ else ""
    words = f"{found}{cause}" if str(found) else type(found).__name__
    return " ".join(words.split())
