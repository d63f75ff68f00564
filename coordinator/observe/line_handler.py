"""Pass each log line of this process to a function, with the same words as in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from protofleet.runtime.logs import run_of_lines

# The arguments are the Unix time, the level, the text and the run of the line, which is "" for a line of the process.
TakeLine = Callable[[float, str, str, str], None]


class LineHandler(logging.Handler):
    def __init__(self, take: TakeLine) -> None:
        super().__init__(logging.INFO)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(record.created, record.levelname.lower(), record.getMessage(), run_of_lines())
        except Exception:  # noqa: BLE001 - as all handlers do: an error in a log line does not end the run
            self.handleError(record)
