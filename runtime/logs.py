"""The log's lines: what others have said stands in them as text, and can neither begin a line nor move a cursor."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Final, TextIO

from protofleet.protocol.wire.printable import printable

LONGEST: Final = 4096  # letters of one message
FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
_DEVICE: Final[ContextVar[str]] = ContextVar("device", default="")


@contextlib.contextmanager
def lines_about(device: str) -> Iterator[None]:
    """In a process of many devices each line of the log begins with the name of the one that it is about."""
    token = _DEVICE.set(f"{device}: ")
    try:
        yield
    finally:
        _DEVICE.reset(token)


class PrintableFormatter(logging.Formatter):
    """One line a message; those of a traceback are indented, so that no line of theirs looks like a message's."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        message = _DEVICE.get() + record.message
        if len(message) > LONGEST:
            message = f"{message[:LONGEST]}... and {len(message) - LONGEST} letters more"
        record.message = printable(message)
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:  # noqa: N802 - logging's own name
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line)}" for line in lines)


def set_up_logging(stream: TextIO, level: int = logging.INFO) -> None:
    """For a whole process, whatever its libraries log too."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def log_uncaught_errors() -> None:
    """For a program, not for who calls one of its commands from Python: whatever ends it, or a thread of it, is a
    message of the log."""
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda said: _log_uncaught(
        said.exc_type, said.exc_value or said.exc_type(), said.exc_traceback
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("protofleet").critical("ended by an error of ours", exc_info=(kind, error, trace))
