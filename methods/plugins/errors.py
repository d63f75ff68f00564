"""Errors of a plug-in, in one line that names the file and the line to correct."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from protofleet.protocol.settings.reader import SettingsError

LONGEST_REASON: Final = 300  # The largest number of characters of the plug-in's own error message.

T = TypeVar("T")


class PlugInError(SettingsError):
    """The error for a plug-in that cannot be used; it affects only the run that needs the plug-in."""


def place_of(error: BaseException, own: Callable[[str], bool]) -> str:
    """Return file:line of the deepest frame in the user's own files, not in protofleet or torch.

    Return "" if there is no such frame.
    """
    if isinstance(error, SyntaxError) and error.filename and own(error.filename):
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if own(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def reason_of(error: BaseException) -> str:
    """Return the error on one line, such as `NameError: name 'undefined' is not defined`."""
    text = str(error.msg if isinstance(error, SyntaxError) else error).strip()
    first = text.splitlines()[0][:LONGEST_REASON] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def guarded(call: Callable[[], T], where: str, files: Collection[str] = ()) -> T:
    """Return the result of a plug-in's own code, and turn each of its errors into a PlugInError.

    SystemExit becomes a PlugInError too, so a plug-in cannot end the process. `files` are the plug-in's own files.
    `where` names the plug-in if the error is not in one of these files.
    """
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place = place_of(error, set(files).__contains__) or where
        raise PlugInError(f"{place}: {reason_of(error)}") from error


def file_of(module: object) -> str:
    return str(getattr(module, "__file__", "") or "")
