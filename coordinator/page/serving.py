"""Serve the live page of a process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.coordinator.observe.line_handler import LineHandler
from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.page_address import PageAddress
from protofleet.coordinator.page.process_page import ProcessPage
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.live.document import Document
from protofleet.runtime.live.event_server import serving_page
from protofleet.runtime.metrics_server import Listener, bound

DOCUMENT: Final = Path(__file__).with_name("page.html")


def page_listener(at: PageAddress) -> Listener | None:
    """Return a listening socket at the address of the page; None if there is no page."""
    if not at.port:
        return None
    try:
        return bound(at.host, at.port, setting="page_host")
    except OSError as error:
        raise RunError(
            f"page_port {at.port} cannot be used ({error.strerror}); set page_port to another port, or to 0 for no "
            "page"
        ) from None


@contextlib.contextmanager
def page_served(page: ProcessPage, operated: OperatedPage) -> Iterator[None]:
    """Serve the page at its address, if it has one, and let it take the log lines of this process."""
    if (listening := page_listener(operated.address)) is None:
        yield
        return
    log, handler = logging.getLogger("protofleet"), LineHandler(page.logged)
    log.addHandler(handler)
    try:
        with serving_page(listening, Document.read(DOCUMENT), page.ring, operated.access, operated.commands):
            yield
    finally:
        log.removeHandler(handler)
