"""An interrupt from the terminal that no import drops."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stopped_as_by_a_terminal() -> Iterator[None]:
    """SIGTERM, which systemd, a batch system or `kill` send, does in the block what an interrupt does."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a shell ignores interrupts for what it has put into the background
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """An interrupt is raised at the end of the block, a second one at once.

    It would be raised in whatever Python text runs, also in text that C code runs while it is imported: some of it
    takes any error for a missing module and goes on, and the program with it.
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
