"""Tiny-ImageNet from train/<wnid>/images/*.JPEG and val/ with val_annotations.txt, where <wnid> is a WordNet id.

The pictures in val/ are used as the test set, because the labels of the real test set were never published. The
classes have the WordNet ids as names, in sorted order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Domain
from protofleet.edge_client.data.errors import DataError, reading
from protofleet.edge_client.data.images.image_files import ImageFiles, image_files_in, subfolders
from protofleet.edge_client.data.sources.source import DataSource

WAY_OUT: Final = "unpack tiny-imagenet-200.zip there, or name its folder in data.root"


def read(folder: Path, domain: str) -> Domain:
    classes = names(folder, domain)
    return Domain(domain, classes, _train(folder / "train", classes), _validation(folder / "val", classes))


def names(folder: Path, domain: str) -> tuple[str, ...]:
    return tuple(subfolders(folder / "train", WAY_OUT))


def _train(folder: Path, classes: tuple[str, ...]) -> ImageFiles:
    groups = [image_files_in(folder / name / "images") for name in classes]
    if not any(groups):
        raise DataError(f"there are no pictures in {folder}/<wnid>/images; {WAY_OUT}")
    labels = np.repeat(np.arange(len(classes)), [len(group) for group in groups])
    return ImageFiles([path for group in groups for path in group], labels)


def _validation(folder: Path, classes: tuple[str, ...]) -> ImageFiles:
    path = folder / "val_annotations.txt"
    number = {name: i for i, name in enumerate(classes)}
    with reading(path, WAY_OUT):
        rows = [
            line.split("\t")[:2] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        labels = np.array([number[name] for _, name in rows], np.int64)
    return ImageFiles([folder / "images" / name for name, _ in rows], labels)


SOURCE = DataSource(read, ("tiny_imagenet",), class_names=names)
