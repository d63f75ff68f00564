"""What a run needs of whatever shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class Display(Protocol):
    def __enter__(self) -> Display: ...
    def __exit__(self, *error: object) -> None: ...

    @property
    def finished(self) -> bool:
        """Whether the coordinator has said that the run is over."""
        ...

    def fold(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Rounds that an earlier process of this run has seen the end of."""

    def print(self, text: str) -> None: ...

    def handle_line(self, line: str) -> None:
        """Of the coordinator: an event as JSON, or anything else."""

    def show_result(self, text: str) -> None:
        """What the finished run came to, as a table."""
