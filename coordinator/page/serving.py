"""Serve the live page of a process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.live.document import Document
from protofleet.runtime.live.event_server import serving_page
from protofleet.runtime.logs import run_of_lines
from protofleet.runtime.metrics_server import bound

DOCUMENT: Final = Path(__file__).with_name("page.html")


class PageLog(logging.Handler):
    """The handler that adds the log lines of this process to the page, with the same words as in the log."""

    def __init__(self, page: ProcessPage) -> None:
        super().__init__(logging.INFO)
        self._page = page

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._page.logged(record.created, record.levelname.lower(), record.getMessage(), run_of_lines())
        except Exception:  # noqa: BLE001 - as all handlers do: an error in a log line does not end the run
            self.handleError(record)


@contextlib.contextmanager
def page_served(page: ProcessPage, operated: OperatedPage) -> Iterator[None]:
    """Serve the page at its address, if it has one, and let it take the log lines of this process."""
    at = operated.address
    if not at.port:
        yield
        return
    try:
        listening = bound(at.host, at.port, setting="page_host")
    except OSError as error:
        raise RunError(
            f"page_port {at.port} cannot be used ({error.strerror}); set page_port to another port, or to 0 for no "
            "page"
        ) from None
    log, handler = logging.getLogger("protofleet"), PageLog(page)
    log.addHandler(handler)
    try:
        with serving_page(listening, Document.read(DOCUMENT), page.ring, operated.access, operated.commands):
            yield
    finally:
        log.removeHandler(handler)
