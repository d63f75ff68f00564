"""Define the interface of a display, an object that shows the progress of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Display(Protocol):
    def __enter__(self) -> Display: ...
    def __exit__(self, *error: object) -> None: ...

    @property
    def finished(self) -> bool:
        """Return whether the coordinator has reported the end of the run."""
        ...

    def fold(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add rounds that ended in an earlier process of this run."""

    def print(self, text: str) -> None: ...

    def show_page(self, address: str) -> None:
        """Show the address of the live page, which logs a browser in."""

    def handle_line(self, line: str) -> None:
        """Handle a line that the coordinator has printed. The line is an event as JSON, or any other text."""

    def show_result(self, text: str) -> None:
        """Show the result of the finished run as a table."""
