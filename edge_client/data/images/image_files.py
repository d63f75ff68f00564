"""Collections of picture files, in which a picture is decoded only on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Indices, Labels
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.images.picture import SUFFIXES, read_picture
from protofleet.edge_client.data.images.resize import Pixels, channels_first
from protofleet.edge_client.data.scaling import Values
from protofleet.protocol.settings.input_shape import InputShape

MOST_NAMED: Final = 4  # A message about files that are not pictures lists at most this number of file types.
WAY_OUT: Final = "replace it, or take it out of the data"


@dataclass(frozen=True)
class ImageFiles:
    paths: Sequence[Path]
    labels: Labels
    way_out: str = WAY_OUT

    def samples(self, chosen: Indices, shape: InputShape) -> Values:
        height, width = shape.spatial
        out = np.empty((len(chosen), height, width, 3), np.uint8)
        for i, number in enumerate(chosen.tolist()):
            out[i] = _picture(self.paths[number], height, width, self.way_out)
        return channels_first(out, shape.channels)


def subfolders(folder: Path, way_out: str) -> list[str]:
    """Return the sorted names of the folders in a folder, so that classes have the same order on all devices."""
    with reading(folder, way_out):
        found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not found:
        raise DataError(f"there are no folders in {folder}; {way_out}")
    return found


def image_files_in(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(
            path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != "."
        )


def class_folders(folder: Path, way_out: str) -> tuple[tuple[str, ...], ImageFiles]:
    """Return the names of the classes in `folder/<class>/<picture>`, and all pictures in the order of classes."""
    classes = tuple(subfolders(folder, way_out))
    paths = [image_files_in(folder / name) for name in classes]
    if not any(paths):
        others = _others_in([folder / name for name in classes])
        raise DataError(
            f"there are no pictures in the folders of {folder} ({', '.join(classes)}){others}; {way_out}"
        )
    labels = np.repeat(np.arange(len(classes)), [len(group) for group in paths])
    return classes, ImageFiles([path for group in paths for path in group], labels)


def _others_in(folders: Sequence[Path]) -> str:
    """Count the files that are not pictures, by type, for an error message; return "" if there are none."""
    count = Counter[str]()
    for folder in folders:
        with reading(folder):
            entries = [path for path in folder.iterdir() if path.name[0] != "."]
        count.update(
            path.suffix.lower() or path.name
            for path in entries
            if path.suffix.lower() not in SUFFIXES and path.is_file()
        )
    if not count:
        return ""
    kinds = ", ".join(f"{number} {suffix[:20]}" for suffix, number in count.most_common(MOST_NAMED))
    more = " ..." if len(count) > MOST_NAMED else ""
    return f", only other files ({kinds}{more}); pictures are {', '.join(sorted(SUFFIXES))}"


def named_pictures(paths: Sequence[Path], shape: InputShape) -> Values:
    """Return the values of pictures whose classes a user wants to predict.

    Raise DataError for a picture that cannot be read.
    """
    for path in paths:
        if not path.exists():
            raise DataError(f"there is no picture {path.absolute()}; is its name right?")
    files = ImageFiles(paths, np.zeros(len(paths), np.int64), "name a picture, such as a PNG or a JPEG")
    return files.samples(np.arange(len(paths)), shape)


def _picture(path: Path, height: int, width: int, way_out: str) -> Pixels:
    with reading(path, way_out):
        return read_picture(path, (height, width))
