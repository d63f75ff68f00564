"""Data sets that are folders of pictures, `<root>/<domain>/<class>/<picture>`.

The data sets are Office-Caltech-10, PACS and a user's own pictures. A user's own pictures may already be split into
training and test: `<root>/<domain>/train/<class>/<picture>` and the same with `test` in place of `train`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofleet.edge_client.data.domain import Collection, Domain, Indices, select
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images.image_files import class_folders, subfolders
from protofleet.edge_client.data.sampling import stratified, without
from protofleet.edge_client.data.sources.source import DataSource
from protofleet.edge_client.data.stable_random import StableRandom

WAY_OUT = "pictures are looked for in <root>/<domain>/<class>/, and data.root names the root"
FOLDERS_WAY_OUT = (
    "pictures are looked for in <root>/<class>/, or <root>/<domain>/<class>/ with data.domain, "
    "or in train/<class>/ and test/<class>/ there"
)
SPLIT_FOLDERS = ({"train", "test"}, {"train", "val"})


def _office_caltech(folder: Path, domain: str) -> Domain:
    """Read a domain; the last two of every ten pictures are for the test.

    The code of the papers RethinkFL (FPL) and FedLSA splits the data set in the same way.
    """
    classes, pictures = class_folders(folder / domain, WAY_OUT)
    test = np.flatnonzero(np.arange(len(pictures.labels)) % 10 >= 8)
    return _split(domain, classes, pictures, test)


def _pacs(folder: Path, domain: str) -> Domain:
    """Read a domain; 30 % of the pictures, rounded up, are for the test.

    The test sets of the domains have 501, 615, 704 and 1,179 pictures, as in the tables of the FedLSA paper.
    """
    classes, pictures = class_folders(folder / domain, WAY_OUT)
    n = len(pictures.labels)
    return _split(
        domain, classes, pictures, stratified(pictures.labels, -(-3 * n // 10), StableRandom("pacs", domain))
    )


def _folders(folder: Path, domain: str) -> Domain:
    """Read a domain with its existing split; if there is no split, a fifth of the pictures is for the test.

    The domain is a folder in the root. If the settings name no domain, the root itself is the domain.
    """
    root = _domain_folder(folder, domain)
    if set(found := subfolders(root, FOLDERS_WAY_OUT)) in SPLIT_FOLDERS:
        return _existing_split(domain, *(root / name for name in sorted(found, key="train".__ne__)))
    classes, pictures = class_folders(root, FOLDERS_WAY_OUT)
    n = len(pictures.labels)
    return _split(
        domain, classes, pictures, stratified(pictures.labels, n // 5, StableRandom("folder", domain))
    )


def _folder_names(folder: Path, domain: str) -> tuple[str, ...]:
    root = _domain_folder(folder, domain)
    found = subfolders(root, FOLDERS_WAY_OUT)
    return tuple(subfolders(root / "train", FOLDERS_WAY_OUT) if set(found) in SPLIT_FOLDERS else found)


def _domain_folder(folder: Path, domain: str) -> Path:
    return folder if domain == "folder" else folder / domain


def _existing_split(domain: str, train: Path, test: Path) -> Domain:
    classes, train_images = class_folders(train, FOLDERS_WAY_OUT)
    test_classes, test_images = class_folders(test, FOLDERS_WAY_OUT)
    if classes != test_classes:
        only = sorted(set(classes) ^ set(test_classes))[0]
        raise DataError(
            f"{train} and {test} must have the same folders, but only one of them has {only!r}; "
            "make an empty folder for a class without pictures"
        )
    return Domain(domain, classes, train_images, test_images)


def _split(domain: str, classes: tuple[str, ...], pictures: Collection, test: Indices) -> Domain:
    train = without(len(pictures.labels), test)
    return Domain(domain, classes, select(pictures, train), select(pictures, np.sort(test)))


OFFICE_CALTECH = DataSource(
    _office_caltech,
    ("amazon", "caltech", "dslr", "webcam"),
    (
        "back_pack", "bike", "calculator", "headphones", "keyboard",
        "laptop_computer", "monitor", "mouse", "mug", "projector",
    ),
)  # fmt: skip
PACS = DataSource(
    _pacs,
    ("art_painting", "cartoon", "photo", "sketch"),
    ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
)
FOLDER = DataSource(_folders, (), class_names=_folder_names)
