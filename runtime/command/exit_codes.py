"""Find the exit code and the message of an error: of a UserError, or of an error of the operating system."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from protofleet.protocol.storage.disk import is_full, is_locked
from protofleet.protocol.user_error import FAILED, UserError

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
    """Return the exit code of a command that this error ends, or None if the error is a bug."""
    if isinstance(error, UserError):
        return error.exit_code
    of_the_system = (
        is_full(error) or is_locked(error) or (isinstance(error, OSError) and _path_problem(error))
    )
    if of_the_system or isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
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
