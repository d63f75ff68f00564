"""By what arrays are known again, whatever container they came in."""

from __future__ import annotations

import hashlib

import numpy as np


def fingerprint(*arrays: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    """SHA-256 over shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
