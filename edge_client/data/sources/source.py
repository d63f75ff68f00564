"""The description of a source of data; each source has a module and a line in catalog.py."""

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
    # Function that reads a domain, given the data's folder and the domain's name.
    read: Callable[[Path, str], Domain]
    domains: tuple[str, ...]  # names of the domains; empty if the files in the folder determine the domains
    # Classes to keep if the settings name no classes; empty means all classes.
    default_classes: tuple[str, ...] = ()
    # Function that returns the names of all classes in the order of their labels, without reading a picture.
    class_names: Callable[[Path, str], tuple[str, ...]] = no_class_names
    needs_folder: bool = True  # whether the user must provide the files in a folder
    ranks: tuple[int, ...] = (3,)  # possible ranks of the samples: 1 for vectors, 2 for series, 3 for images
    # The shape of all samples; None means that the settings determine the shape.
    shape: InputShape | None = None
    channels: tuple[int, ...] = (1, 3)  # possible numbers of channels; empty means the number in the files
    # The scale of values that are not pixels. None means the scale in the settings, or no scaling if the settings
    # have no scale.
    scale: Scale | None = None

    def problem_with(self, name: str, shape: InputShape) -> str:
        """Return why the source cannot give samples of this shape, or ""."""
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
