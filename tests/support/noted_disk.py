"""A disk that records its steps."""

from __future__ import annotations

from pathlib import Path

from protofleet.protocol.storage.disk import Disk


class NotedDisk(Disk):
    """A disk that records each step in `taken`, as (kind of step, name of the file or folder)."""

    def __init__(self, durable: bool = False) -> None:
        super().__init__(durable)
        self.taken: list[tuple[str, str]] = []

    def before_step(self, step: str, what: Path | str) -> None:
        self.taken.append((step, Path(what).name))
