"""A reader that accepts only regular files of limited size.

Another kind of file, such as a pipe, could block the reader.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 << 20  # largest file that is read


class UnusableError(ValueError):
    """An error for a file that cannot be used as a sample; its text is the reason, in one line."""


def content_of(path: Path, *, links: bool = True) -> bytes:
    """Read a regular file.

    The opened file is checked, so nobody can replace it with another file between the checks and the reading.

    Raise FileNotFoundError if there is no file. Raise UnusableError if the file is not regular, too large or not
    readable.
    """
    follow = 0 if links else os.O_NOFOLLOW
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | follow)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise UnusableError("it is a link; replace it with the file itself") from None
        raise UnusableError(f"it is not a regular file, or it cannot be read ({error.strerror})") from None
    try:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise UnusableError("it is a folder; put its files directly into the folder of the class")
        if not stat.S_ISREG(found.st_mode):
            raise UnusableError("it is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(MOST_BYTES + 1) if found.st_size <= MOST_BYTES else b""
    finally:
        os.close(handle)
    if (size := max(found.st_size, len(content))) > MOST_BYTES:
        raise UnusableError(f"it has {size:,} bytes, but the limit is {MOST_BYTES:,}")
    return content
