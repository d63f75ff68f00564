"""Count the work of a call in steps of the interpreter; the count is the same on every machine, also under load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Name(str):
    """A device's name whose hashing and comparison take steps of the interpreter.

    So steps are counted also where a set hashes or compares all of its names.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True


def steps_of(call: Callable[[], object]) -> int:
    """Return the number of bytecodes that this call executes.

    The work inside one C function counts as one step, except the hashing and comparing of `Name` objects.
    """
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return counted
