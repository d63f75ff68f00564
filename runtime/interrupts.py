"""Keep interrupts from being lost during imports, and let SIGTERM act like an interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_as_by_a_terminal() -> Iterator[None]:
    """Make SIGTERM act like an interrupt inside the `with` block.

    systemd, batch systems and `kill` send SIGTERM.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        # If a shell started the program in the background, interrupts are ignored, so there is no handler to call.
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Raise an interrupt only at the end of the `with` block; raise a second interrupt at once.

    Without this delay, an interrupt during an import could be raised inside code that treats any error as a
    missing module. That code would continue, and the interrupt would be lost.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    held = False

    def hold(number: int, frame: object) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if held:
        raise KeyboardInterrupt
