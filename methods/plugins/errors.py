"""What is wrong with a plug-in, in one line that names the file and the line to be mended."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from protofleet.protocol.settings.reader import SettingsError

LONGEST_REASON: Final = 300  # letters of what its own error says

T = TypeVar("T")


class PlugInError(SettingsError):
    """A plug-in that cannot be used: it hurts nobody but the run that asks for it."""


def place_of(error: BaseException, own: Callable[[str], bool]) -> str:
    """file:line, the deepest of the user's own files, and not ours or torch's; empty: it is of none of them."""
    if isinstance(error, SyntaxError) and error.filename and own(error.filename):
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if own(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def reason_of(error: BaseException) -> str:
    """`NameError: name 'undefined' is not defined`, on one line."""
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    first = text.splitlines()[0][:LONGEST_REASON] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def guarded(call: Callable[[], T], where: str, files: Collection[str] = ()) -> T:
    """What a plug-in's own code gives. Whatever it raises is a PlugInError, SystemExit too: it ends nobody's process.
    `files` are its own; `where` names it if none of them is to blame."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place = place_of(error, set(files).__contains__) or where
        raise PlugInError(f"{place}: {reason_of(error)}") from error


def file_of(module: object) -> str:
    return str(getattr(module, "__file__", "") or "")
