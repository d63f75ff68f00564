"""The error for data that cannot be used."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protofleet.protocol.user_error import UserError


class DataError(UserError):
    """An error for data that cannot be used.

    The message is one line. It names the problem, the file or folder, and a way out.
    """


@contextmanager
def reading(path: Path, way_out: str = "copy or download it again") -> Iterator[None]:
    """Raise a DataError with the path of the file if the file is missing, damaged or unreadable."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; {way_out}") from None
    except (OSError, EOFError, ValueError, KeyError, IndexError, zlib.error, pickle.PickleError) as error:
        raise DataError(f"{path} cannot be read ({_short(error)}); {way_out}") from error


def _short(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
