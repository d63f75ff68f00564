"""What goes wrong with data."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataError(Exception):
    """The data cannot be used. One line: what is wrong, where it was looked for, what to do about it."""


@contextmanager
def reading(path: Path, way_out: str = "copy or download it again") -> Iterator[None]:
    """Whatever a damaged or unreadable file does to its reader becomes one line that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; {way_out}") from None
    except (OSError, EOFError, ValueError, KeyError, IndexError, zlib.error, pickle.PickleError) as error:
        raise DataError(f"{path} cannot be read ({_short(error)}); {way_out}") from error


def _short(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
