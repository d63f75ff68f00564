"""USPS, digits of 16x16 pixels in LIBSVM's text format, from usps.bz2 (7,291) and usps.t.bz2 (2,007 for the test).

A line is `label index:value ...`. The labels 1..10 mean the digits 0..9, and the values are in [-1, 1].
"""

from __future__ import annotations

import bz2
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Domain, ImagesInMemory
from protofleet.edge_client.data.errors import reading
from protofleet.edge_client.data.sources.source import DIGITS, DataSource, digit_names

SIDE: Final = 16
PIXELS: Final = SIDE * SIDE
WAY_OUT: Final = "put it there as LIBSVM's data page gives it, or name its folder in data.root"


def read(folder: Path, domain: str) -> Domain:
    return Domain(domain, DIGITS, _load(folder / "usps.bz2"), _load(folder / "usps.t.bz2"))


def _load(path: Path) -> ImagesInMemory:
    with reading(path, WAY_OUT), bz2.open(path, "rt", encoding="ascii") as file:
        rows = [_row(line) for line in file if line.strip()]
        values = np.array([row[1:] for row in rows], np.float32)
        labels = np.array([row[0] for row in rows], np.int64) - 1
        if not rows or np.abs(values).max() > 1:
            raise ValueError("it is empty, or it has a value outside [-1, 1]")
        grey = ((values + 1) / 2 * 255).astype(np.uint8)  # torchvision rounds down in the same way.
    return ImagesInMemory(grey.reshape(-1, SIDE, SIDE, 1), labels)


def _row(line: str) -> list[float]:
    """Return the label and all pixels of a line; LIBSVM may leave out pixels that are 0."""
    label, *pairs = line.split()
    row = [float(label)] + [0.0] * PIXELS
    for pair in pairs:
        index, value = pair.split(":")
        if not 1 <= int(index) <= PIXELS:
            raise ValueError(f"a line has the pixel {index}, but the last pixel is {PIXELS}")
        row[int(index)] = float(value)
    return row


SOURCE = DataSource(read, ("usps",), class_names=digit_names)
