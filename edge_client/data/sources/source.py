"""A source of data: one module each, and a line in catalog.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.domain import Domain

DIGITS: Final = tuple(str(digit) for digit in range(10))


def digit_names(folder: Path, domain: str) -> tuple[str, ...]:
    return DIGITS


def no_class_names(folder: Path, domain: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Source:
    read: Callable[[Path, str], Domain]  # from the data's folder, one domain
    domains: tuple[str, ...]  # none: the folder decides
    default_classes: tuple[str, ...] = ()  # that are kept unless the settings name others; none: all
    # All of them by their labels; no picture is read for it.
    class_names: Callable[[Path, str], tuple[str, ...]] = no_class_names
    needs_folder: bool = True  # without its folder there are no data of it; False: packages have them
