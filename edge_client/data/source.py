"""A source of data: one module each, and a line in sources.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_client.data.domain import Domain


@dataclass(frozen=True)
class Source:
    read: Callable[[Path, str], Domain]  # from the data's folder, one domain
    domains: tuple[str, ...]  # none: the folder decides
    classes: tuple[str, ...] = ()  # that are kept unless the settings name others; none: all
