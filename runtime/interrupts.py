"""Handle interrupts so that no import drops them, and so that SIGTERM acts like an interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_as_by_a_terminal() -> Iterator[None]:
    """Let SIGTERM act like an interrupt in the block.

    systemd, a batch system or `kill` send SIGTERM.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        # A shell ignores interrupts for programs that it has put into the background.
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
    """Raise an interrupt only at the end of the block, but a second one at once.

    Otherwise it would be raised in any Python code that runs, also in code that C code runs during an import.
    Some of this code treats any error as a missing module and goes on. Then the whole program goes on, and
    the interrupt is lost.
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
