"""DomainNet as it is published: `<domain>/<class>/<picture>` and two lists for each domain.

Each line of <domain>_train.txt and <domain>_test.txt has a path, relative to the root, and a label. If the settings
name no classes, only the ten classes that the papers of FedBN and FedPLVM use are read.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Domain
from protofleet.edge_client.data.errors import reading
from protofleet.edge_client.data.images.image_files import ImageFiles
from protofleet.edge_client.data.sources.source import DataSource

WAY_OUT: Final = "put DomainNet's split files and folders there, or name their folder in data.root"
TEN: Final = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip

Listed = list[tuple[str, int]]


def read(folder: Path, domain: str) -> Domain:
    train, test = (_listed(folder / f"{domain}_{split}.txt") for split in ("train", "test"))
    classes = _classes(folder, domain, train + test)
    return Domain(domain, classes, _pictures(folder, train), _pictures(folder, test))


def _listed(path: Path) -> Listed:
    with reading(path, WAY_OUT):
        lines = [
            line.rsplit(" ", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        found = [(name, int(label)) for name, label in lines]
        if not found or min(label for _, label in found) < 0:
            raise ValueError("it lists no pictures, or a label below 0")
        return found


def _classes(folder: Path, domain: str, listed: Listed) -> tuple[str, ...]:
    """Return the class names in the order of their labels.

    The name of a class is the name of the folder of its pictures. If there are no pictures with the label 3, for
    example, the name of this class is "class 3".
    """
    names = {label: PurePosixPath(name).parent.name for name, label in listed}
    return tuple(names.get(label, f"class {label}") for label in range(max(names) + 1))


def _pictures(folder: Path, listed: Listed) -> ImageFiles:
    return ImageFiles(
        [folder / name for name, _ in listed], np.array([label for _, label in listed], np.int64)
    )


SOURCE = DataSource(read, ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), TEN)
