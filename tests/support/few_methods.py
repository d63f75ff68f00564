"""One method of each shape for `make test`; `make test-all` tests all other methods too."""

from collections.abc import Iterable
from typing import Final

import pytest

# In this order: weights; prototypes; answers of ragged shapes; two phases; statistics without training.
SHAPES: Final = ("fedavg", "fedproto", "fedplcc", "fedpall", "fedncm")


def of_each_shape(methods: Iterable[str]) -> list[object]:
    """Return all methods for `parametrize`; those that are not in SHAPES are marked slow."""
    return [
        method if method in SHAPES else pytest.param(method, marks=pytest.mark.slow) for method in methods
    ]
