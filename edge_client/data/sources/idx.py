"""The idx files of MNIST and similar data sets, plain or gzipped."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import ImagesInMemory
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.images.resize import Pixels

BYTES: Final = 8  # code of the type "unsigned byte" in an idx file
NAMES: Final = {"train": "train", "test": "t10k"}


def read_pair(folders: Sequence[Path], split: str) -> ImagesInMemory:
    """Return the images and labels of `train` or `test`, from the first folder that has their files."""
    images_path = _found(folders, f"{NAMES[split]}-images-idx3-ubyte")
    labels_path = _found(folders, f"{NAMES[split]}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} has {len(images)} images, but {labels_path} has {len(labels)} "
            "labels; one of these files belongs to another data set, so copy both files again"
        )
    return ImagesInMemory(images[..., None], labels.astype(np.int64))


def read_idx(path: Path, dimensions: int) -> Pixels:
    with reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read()
        header = np.frombuffer(data, ">i4", count=1 + dimensions)
        if header[0] != BYTES << 8 | dimensions:
            raise ValueError(f"it is not an idx file with bytes in {dimensions} dimensions")
        return np.frombuffer(data, np.uint8, offset=header.nbytes).reshape(header[1:])


def _found(folders: Sequence[Path], name: str) -> Path:
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    places = ", ".join(str(folder) for folder in folders)
    raise DataError(
        f"there is no {name} or {name}.gz in {places}; put the file there, or set data.root to the folder of the file"
    )
