"""Write log lines in which text from other parties can neither begin a new line nor move the cursor."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TextIO

from protofleet.methods.plugins.authors import authors_frame, code_of
from protofleet.protocol.wire.printable import printable

LONGEST: Final = 4096  # Largest number of letters in a message.
FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
Form = Literal["text", "json"]
LIBRARIES: Final = frozenset({"site-packages", "dist-packages"})
STANDARD_LIBRARY: Final = Path(sysconfig.get_paths()["stdlib"])
METHODS: Final = "methods"  # Name of the folder with method files.
FIELDS: Final = "protofleet_fields"  # Name of the attribute in which a log record has its figures.
_DEVICE: Final[ContextVar[str]] = ContextVar("device", default="")
_RUN: Final[ContextVar[str]] = ContextVar("run", default="")


def lines_about(device: str) -> contextlib.AbstractContextManager[None]:
    """Begin each log line inside the `with` with the device's name, in a process with many devices."""
    return _set(_DEVICE, device)


def lines_of_run(run: str) -> contextlib.AbstractContextManager[None]:
    """Begin each log line inside the `with` with the run's name, in a process with several runs."""
    return _set(_RUN, run)


@contextlib.contextmanager
def _set(variable: ContextVar[str], value: str) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def run_of_lines() -> str:
    """Return the run that the present log lines belong to, or ""."""
    return _RUN.get()


def _named() -> dict[str, str]:
    """Return the device and the run that the present log lines belong to, without empty names."""
    return {variable.name: value for variable in (_DEVICE, _RUN) if (value := variable.get())}


class PrintableFormatter(logging.Formatter):
    """A formatter that writes one line for each message.

    The lines of a traceback are indented, so that no such line looks like a message.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        message = ": ".join([*_named().values(), record.message])
        if len(message) > LONGEST:
            message = f"{message[:LONGEST]}... and {len(message) - LONGEST} letters more"
        record.message = printable(message)
        return super().formatMessage(record)

    def formatException(self, ei: logging._SysExcInfoType) -> str:  # noqa: N802 - logging's own name
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {printable(line)}" for line in lines)


class JsonFormatter(logging.Formatter):
    """A formatter that writes each message as one JSON object on one line, for a log collector.

    JSON itself escapes unprintable characters.
    """

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname, "logger": record.name, **_named(),
            "message": record.getMessage()[:LONGEST], **getattr(record, FIELDS, {}),
        }  # fmt: skip
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


def fields(**figures: Any) -> Mapping[str, Any]:
    """Return figures of a message for the argument `extra` of a log call; each figure is a key in JSON logs."""
    return {FIELDS: {name: value for name, value in figures.items() if value is not None}}


def set_up_logging(stream: TextIO, level: int = logging.INFO, form: Form = "text") -> None:
    """Set up logging for a whole process, including the messages of its libraries."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else PrintableFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


def log_uncaught_errors() -> None:
    """Log every error that ends the program or one of its threads.

    Only a program calls this function, because it changes the exception hooks of the whole process.
    """
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda said: _log_uncaught(
        said.exc_type, said.exc_value or said.exc_type(), said.exc_traceback
    )


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("protofleet").critical(
        "ended by an error%s%s: %s: %s",
        "" if authors_frame(trace) else " of ours",
        place_of(trace),
        kind.__name__,
        error,
        exc_info=(kind, error, trace),
    )


def is_of_a_library(file: Path) -> bool:
    if "protofleet" in file.parts:  # protofleet may be installed in the same folder as the libraries.
        return False
    return not LIBRARIES.isdisjoint(file.parts) or STANDARD_LIBRARY in file.parents


def place_of(trace: TracebackType | None) -> str:
    """Return the place where an error occurred.

    If a plug-in raised the error, the place is the file, line and code of the plug-in. Otherwise the place is the
    last frame in a method file. If there is no such frame, the place is the last frame outside of libraries.
    """
    if (authors := authors_frame(trace)) is not None:
        return f" in {authors.filename}:{authors.lineno} ({authors.name}: {code_of(authors)})"
    frames = [frame for frame in traceback.extract_tb(trace) if not is_of_a_library(Path(frame.filename))]
    own = [f for f in frames if Path(f.filename).parent.name == METHODS] or frames
    return f" in {own[-1].filename}:{own[-1].lineno} ({own[-1].name})" if own else ""
