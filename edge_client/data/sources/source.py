"""A source of data: each has a module, and a line in catalog.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.domain import Domain
from protofleet.edge_client.data.scaling import Scale
from protofleet.protocol.settings.input_shape import FORMS, KINDS, InputShape

DIGITS: Final = tuple(str(digit) for digit in range(10))


def digit_names(folder: Path, domain: str) -> tuple[str, ...]:
    return DIGITS


def no_class_names(folder: Path, domain: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class DataSource:
    read: Callable[[Path, str], Domain]  # reads one domain from the data's folder
    domains: tuple[str, ...]  # none: the folder decides
    default_classes: tuple[str, ...] = ()  # classes that are kept unless the settings name others; none: all
    # Returns the names of all classes in the order of their labels, without reading a picture.
    class_names: Callable[[Path, str], tuple[str, ...]] = no_class_names
    needs_folder: bool = True  # whether its data need a folder; False: packages contain them
    ranks: tuple[int, ...] = (3,)  # ranks of its samples: 1 vectors, 2 series, 3 images
    shape: InputShape | None = None  # its only shape; None: the settings give it
    channels: tuple[int, ...] = (1, 3)  # channels that it can give; (): as many as its files have
    scale: Scale | None = (
        None  # scale of values that are not pixels; None: the settings give it, or the numbers stay unchanged
    )

    def problem_with(self, name: str, shape: InputShape) -> str:
        """Return why it cannot give samples of this shape, or ""."""
        if self.shape is not None and shape != self.shape:
            return f"{name} has {self.shape}, and the settings ask for {shape}; leave shape, size and channels out"
        if shape.rank not in self.ranks:
            given = " or ".join(f"{KINDS[rank]} {FORMS[rank]}" for rank in self.ranks)
            return f"{name} has {given}, and the settings ask for {shape}; take another shape or source"
        if self.channels and shape.rank == 3 and shape.channels not in self.channels:
            return (
                f"{name} has images of 3 channels, or 1 in grey, and the settings ask for {shape}; "
                "the source arrays has as many as its files"
            )
        return ""
