"""How much work a call is, counted in steps of the interpreter: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Name(str):
    """A device's name. Whoever hashes or compares it takes steps, also where a set does that for all of its names."""

    __slots__ = ()

    def __hash__(self) -> int:
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True


def steps_of(call: Callable[[], object]) -> int:
    """Bytecodes under this call. What one function of C does at once is one step, but for names and their sets."""
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
