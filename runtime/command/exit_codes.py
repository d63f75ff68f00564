"""Define the exceptions that a user or operator can act on, with their exit codes.

All other exceptions are bugs of protofleet.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from protofleet.coordinator.moving.place import MovedError
from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.state.device import TakenOverError
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import is_full, is_locked
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.transport.address import BrokerError
from protofleet.runtime.command.errors import (
    BUDGET_SPENT,
    DIVERGED,
    FAILED,
    MISUSED,
    OUTRANKED,
    OutrankedError,
    RunError,
    SignalledError,
    SteppedDownError,
)
from protofleet.runtime.launcher import LauncherError
from protofleet.runtime.metrics_page import MetricsError

NO_FOLDER: Final = "a file is where a folder should be; move it away, or name another folder"
NOT_ALLOWED: Final = "; correct its owner or mode, or name another place"
PATH_PROBLEMS: Final[Mapping[int, str]] = {
    errno.EEXIST: NO_FOLDER,
    errno.ENOTDIR: NO_FOLDER,
    errno.EISDIR: "a folder is where a file should be; name the file",
    errno.EACCES: f"this user may not use it{NOT_ALLOWED}",
    errno.EPERM: f"this user may not change it{NOT_ALLOWED}",
    errno.EROFS: "it is on a disk that can only be read; name another place",
    errno.ENAMETOOLONG: "its name is too long; name another place",
    errno.ELOOP: "its links form a circle; name another place",
}


def exit_code(error: Exception) -> int | None:
    match error:
        case SettingsError() | KeyFileError() | RunMismatchError() | StatementError() | NewerFormatError():
            return MISUSED
        case SignalledError():
            return error.exit_code
        case OutrankedError() | MovedError():
            return OUTRANKED
        case SteppedDownError():
            return 0
        case DamagedError() | BrokerError() | DataError() | RunError() | MetricsError() | TakenOverError():
            return FAILED
        case LauncherError() | AuthorError():
            return FAILED
        case DivergedError():
            return DIVERGED
        case BudgetSpentError():
            return BUDGET_SPENT
        case _ if is_full(error) or is_locked(error):
            return FAILED
        case OSError() if _path_problem(error):
            return FAILED
        case PermissionError() | IsADirectoryError() | NotADirectoryError():
            return FAILED
    return None


def message(error: Exception) -> str:
    """Return the message of an exception that has an exit code."""
    if is_locked(error):
        return (
            f"the run's database is held by another program ({error}), such as a shell or a backup: end that program "
            "or let it finish, and run it again"
        )
    if is_full(error):
        where = (error.filename or error.strerror) if isinstance(error, OSError) else error
        return f"the disk is full: {where}; make room and run it again"
    if isinstance(error, OSError) and (problem := _path_problem(error)):
        return f"{error.filename}: {problem}"
    return str(error)


def _path_problem(error: OSError) -> str:
    """Return the problem of a path that the user has named, with advice.

    Return "" if the error is not about a path.
    """
    return PATH_PROBLEMS.get(error.errno or 0, "") if error.filename is not None else ""
