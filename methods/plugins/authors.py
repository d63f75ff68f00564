"""Messages for the author of a method or another plug-in whose code raises an error during a run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from inspect import unwrap
from types import FrameType, TracebackType
from typing import Final

from protofleet.methods.plugins import packages
from protofleet.methods.plugins.errors import reason_of
from protofleet.methods.plugins.file import PREFIX
from protofleet.protocol.user_error import UserError

LONGEST_LINE: Final = 120  # The largest number of characters of a line of code in a message.
OURS: Final = "protofleet"
NO_EXIT: Final = " (a plug-in ends no process; let it raise an error that says why)"


class AuthorError(UserError, RuntimeError):
    """An error that the author of a method or another plug-in must correct.

    It states the file, the line and the reason.
    """


def words_of(error: BaseException) -> str:
    """Return a message such as `fednova.py:45: ValueError: half, in run: raise ValueError("half")`.

    Return "" if the traceback contains no line of a plug-in.
    """
    if (frame := authors_frame(error.__traceback__)) is None:
        return ""
    way_out = "" if isinstance(error, Exception) else NO_EXIT
    return f"{frame.filename}:{frame.lineno}: {reason_of(error)}{way_out}, in {frame.name}: {code_of(frame)}"


def authors_frame(trace: TracebackType | None) -> traceback.FrameSummary | None:
    """Return the deepest frame with code of an author, even if this code has called protofleet or a library."""
    found = [(frame, number) for frame, number, whose in _frames(trace) if whose != OURS]
    return traceback.StackSummary.extract(iter(found[-1:]))[0] if found else None


def ends_with_author(trace: TracebackType | None) -> bool:
    """Return whether an author's code caused the error, directly or through Python or a library."""
    whose = [whose for _, _, whose in _frames(trace)]
    return bool(whose) and whose[-1] != OURS


def code_of(frame: traceback.FrameSummary) -> str:
    return (frame.line or "").strip()[:LONGEST_LINE]


def defined_at(call: Callable[..., object]) -> str:
    """Return file:line of a function or a method."""
    code = getattr(unwrap(call), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else str(getattr(call, "__module__", call))


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int, str]]:
    """Yield the frames of plug-ins and of protofleet, each with its line number and its top-level package."""
    packaged = packages.modules()
    for frame, number in traceback.walk_tb(trace):
        first = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if first == OURS or first.startswith(PREFIX) or first in packaged:
            yield frame, number, first
