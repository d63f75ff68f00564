"""SVHN's cropped digits, of 32x32 pixels in colour, from train_32x32.mat (73,257) and test_32x32.mat (26,032)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Domain, ImagesInMemory
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.sources.source import DIGITS, DataSource, digit_names

WAY_OUT: Final = "put SVHN's cropped digits (format 2) there, or name their folder in data.root"


def read(folder: Path, domain: str) -> Domain:
    return Domain(domain, DIGITS, _load(folder / "train_32x32.mat"), _load(folder / "test_32x32.mat"))


def _load(path: Path) -> ImagesInMemory:
    with reading(path, WAY_OUT), path.open("rb") as file:
        try:
            from scipy.io.matlab import MatReadError, loadmat
        except ImportError:
            raise DataError(
                f"reading the MATLAB file {path} needs the package scipy: pip install scipy"
            ) from None
        try:
            table = loadmat(file, variable_names=["X", "y"])
        except (MatReadError, NotImplementedError, TypeError) as error:  # `reading` handles only ValueErrors.
            raise ValueError(error) from error
        images, labels = np.asarray(table["X"]), np.asarray(table["y"]).astype(np.int64).ravel()
        if images.shape != (32, 32, 3, len(labels)) or images.dtype != np.uint8:
            raise ValueError(
                f"the array X is {images.dtype} {images.shape}, but it must be uint8 (32, 32, 3, {len(labels)})"
            )
    # In a MATLAB file the images are along the last axis, and the digit 0 has the label 10.
    return ImagesInMemory(np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels % 10)


SOURCE = DataSource(read, ("svhn",), class_names=digit_names)
