"""Serve the live page of one of several runs at the one address of the process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from protofleet.coordinator.page.live_page import LivePage
from protofleet.coordinator.page.operated_page import OperatedPage
from protofleet.coordinator.page.serving import page_served


class PageInTurn:
    """The address shows the page of the run that was opened first, among the runs that are open."""

    def __init__(self, operated: OperatedPage) -> None:
        self._operated, self._pages = operated, list[LivePage]()
        self._served = contextlib.ExitStack()
        self._serving: LivePage | None = None

    @contextlib.contextmanager
    def showing(self, page: LivePage) -> Iterator[None]:
        """Serve the page while the `with` lasts, as soon as all earlier pages have ended."""
        self._pages.append(page)
        try:
            self._serve_first()
            yield
        finally:
            self._pages.remove(page)
            self._serve_first()

    def _serve_first(self) -> None:
        first = next(iter(self._pages), None)
        if first is self._serving:
            return
        self._served.close()
        self._serving = None
        if first is not None:
            self._served.enter_context(page_served(first, self._operated))
            self._serving = first
